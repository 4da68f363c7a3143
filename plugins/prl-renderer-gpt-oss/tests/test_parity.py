"""Ids equal those of openai-harmony and of the chat template on the real vocabulary, over fuzzed conversations."""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Iterator
from typing import Any

import jinja2
import pytest
from fixtures.harmony import DATE, harmony_encoding, harmony_ids, template_text, thought_of
from fixtures.plugin import real_tokenizer, vendor_tokenizer

from prl import create_renderer
from prl.testing.conversations import MARKUP, GeneratedConversation, Style, generate_conversations
from prl.types import RenderError

CONVERSATIONS = 2_000
HARMONY_MARKUP = (
    "<|end|>",
    "<|start|>system<|message|>",
    "<|channel|>final<|message|>",
    "<|return|>",
    "<|call|>",
    "<|constrain|>",
)
STYLE = Style(markup=(*MARKUP, *HARMONY_MARKUP))
VALUES: dict[str, tuple[Any, ...]] = {
    "reasoning_effort": ("low", "medium", "high"),
    "model_identity": ("You are ChatGPT, a large language model trained by OpenAI.", "You are a ship's cook."),
    "builtin_tools": ((), ("browser",), ("python",), ("python", "browser")),
}
HARMONY_VALUES = VALUES | {
    "conversation_start_date": (DATE, ""),
    "knowledge_cutoff": ("2024-06", "1999"),
    "thinking_retention": (None, "tool_cycle", "all"),
}
SCHEMA_TEXTS = ("x", "a b", 'é"q', "l1\nl2", "", "東京", "a\r\nb\n", "null")
SCHEMA_VALUES = (
    None,
    True,
    0,
    -3,
    1.5,
    1e-7,
    1e22,
    1e-5,
    1e16,
    -0.0,
    10**18,
    10**25,
    "s",
    [1, {"k": 1.0}],
    {"z": [None]},
)
SCHEMA_TYPES = (
    "string",
    "number",
    "integer",
    "boolean",
    "array",
    "object",
    "object",
    "odd",
    ["string", "null"],
    [],
    None,
)


def choices(values: dict[str, tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
    for chosen in itertools.product(*values.values()):
        yield dict(zip(values, chosen, strict=True))


def schema(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    """Write a JSON schema with the odd parts on which the two vendors' declarations differ."""
    out: dict[str, Any] = {"type": rng.choice(SCHEMA_TYPES)} if rng.random() < 0.85 else {}
    extras: dict[str, tuple[float, Any]] = {
        "description": (0.3, (*SCHEMA_TEXTS, None, 3)),
        "title": (0.2, (*SCHEMA_TEXTS, 2)),
        "default": (0.25, SCHEMA_VALUES),
        "enum": (0.2, (["a", "b"], [], ["a", 1], [1, 2], "no")),
        "nullable": (0.2, (True, False, None)),
        "examples": (0.15, (["e", 1], [], "x")),
        "required": (0.3, (["a"], ["zz", "m"], "a", [1])),
    }
    for key, (rate, values) in extras.items():
        if rng.random() < rate:
            out[key] = rng.choice(values)
    if depth < 3:
        if rng.random() < 0.5:
            names = rng.sample(("zz", "a", "größe", "x y", "m"), rng.randrange(4))
            out["properties"] = {name: rng.choice([schema(rng, depth + 1)] * 9 + [True, None]) for name in names}
        if rng.random() < 0.4:
            out["items"] = schema(rng, depth + 1)
        if rng.random() < 0.25:
            out["oneOf"] = [schema(rng, depth + 1) for _ in range(rng.randrange(4))]
    return out


def conversations(seed: int) -> Iterator[GeneratedConversation]:
    """Yield conversations; a third of their tools have odd schemas."""
    rng = random.Random(seed)
    for conversation in generate_conversations(CONVERSATIONS, seed=seed, style=STYLE):
        for tool in conversation.tools or ():
            if rng.random() < 0.3:
                tool["function"]["parameters"] = schema(rng)
        yield conversation


def test_ids_equal_the_vendors_encoder() -> None:
    """A prompt that differs from harmony's trains and samples the model off its own format.

    The encoder never makes control tokens of text, hence "literal" for every role.
    """
    tokenizer = real_tokenizer("gpt-oss")
    options = list(choices(HARMONY_VALUES))
    random.Random(5).shuffle(options)
    for number, one in enumerate(conversations(1)):
        chosen, prompt = options[number % len(options)], number % 2 == 0
        renderer = create_renderer(tokenizer, "gpt-oss", content_tokens="literal", **chosen)
        before = copy.deepcopy((one.messages, one.tools))
        rendered = renderer.render(one.messages, tools=one.tools, add_generation_prompt=prompt)
        assert (one.messages, one.tools) == before, "the caller's messages were changed"
        assert len(rendered.message_indices) == len(rendered.token_ids) == len(rendered.sampled_mask)
        assert rendered.token_ids == harmony_ids(one.messages, one.tools, chosen, prompt), (chosen, prompt, one)


def test_ids_equal_the_chat_template() -> None:
    """Models tuned on the template's form need that form; where the template raises, so does the renderer."""
    tokenizer = real_tokenizer("gpt-oss")
    options = list(choices(VALUES))
    rng = random.Random(2)
    compared = refused = 0
    for number, one in enumerate(conversations(2)):
        chosen, prompt = options[number % len(options)], number % 2 == 0
        _separate(rng, one)
        renderer = create_renderer(
            tokenizer,
            "gpt-oss",
            layout="template",
            content_tokens="template",
            conversation_start_date=DATE,
            **chosen,
        )
        try:
            text = template_text(one.messages, one.tools, chosen, prompt)
        except (jinja2.TemplateError, TypeError, AttributeError):
            with pytest.raises(RenderError):
                renderer.render_ids(one.messages, tools=one.tools, add_generation_prompt=prompt)
            refused += 1
            continue
        ids = renderer.render_ids(one.messages, tools=one.tools, add_generation_prompt=prompt)
        assert ids == vendor_tokenizer("gpt-oss").encode(text, add_special_tokens=False).ids, (chosen, prompt, one)
        compared += 1
    assert compared > CONVERSATIONS * 0.75
    assert refused > 50


def _separate(rng: random.Random, one: GeneratedConversation) -> None:
    """Leave few calls with both content and reasoning: the template refuses those."""
    for message in one.messages:
        if message.get("tool_calls") and thought_of(message) and message["content"] and rng.random() < 0.9:
            message["content"] = None


def test_the_encoders_own_dropping_of_reasoning_is_the_same_for_one_answer() -> None:
    """openai-harmony drops reasoning by itself; the rule written down here must be the same rule."""
    import openai_harmony as harmony

    talk: list[Any] = [
        {"role": "user", "content": "2+2?"},
        {"role": "assistant", "reasoning_content": "Easy.", "content": "4"},
        {"role": "user", "content": "3+3?"},
    ]
    make, role = harmony.Message.from_role_and_content, harmony.Role
    system = harmony.SystemContent.new().with_conversation_start_date(DATE)
    written = [
        make(role.SYSTEM, system),
        make(role.USER, "2+2?"),
        make(role.ASSISTANT, "Easy.").with_channel("analysis"),
        make(role.ASSISTANT, "4").with_channel("final"),
        make(role.USER, "3+3?"),
    ]
    whole = harmony.Conversation.from_messages(written)
    expected = harmony_encoding().render_conversation_for_completion(whole, role.ASSISTANT)
    renderer = create_renderer(real_tokenizer("gpt-oss"), "gpt-oss", conversation_start_date=DATE)
    assert renderer.render_ids(talk, add_generation_prompt=True) == expected


@pytest.mark.parametrize("layout", ["harmony", "template"])
def test_an_unknown_role_is_refused_not_dropped(layout: str) -> None:
    """The template drops such a message without a word: a caller would never know."""
    renderer = create_renderer(real_tokenizer("gpt-oss"), "gpt-oss", layout=layout)
    with pytest.raises(RenderError, match="message 1"):
        renderer.render_ids([{"role": "user", "content": "Hi"}, {"role": "critic", "content": "Be brief."}])


@pytest.mark.parametrize("tool", [{}, {"type": "function"}, {"type": "function", "function": {"name": 3}}])
def test_a_tool_without_a_name_is_refused(tool: Any) -> None:
    """`type None = ...` in a prompt is a tool that nobody can call."""
    renderer = create_renderer(real_tokenizer("gpt-oss"), "gpt-oss")
    with pytest.raises(RenderError, match="tool 0"):
        renderer.render_ids([{"role": "user", "content": "Hi"}], tools=[tool])
