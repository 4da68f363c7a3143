"""Checks of what clients really send: parts, nulls, JSON strings, two spellings of reasoning, and faults."""

from __future__ import annotations

import copy
import json
from typing import Any

from prl.types import ConfigError, Message, RenderError

from .check import brief, check, expect, fail
from .material import (
    ARGUMENTS,
    ASK_AGAIN,
    SAY,
    THOUGHT,
    TOOL,
    assistant,
    call,
    calling,
    flat,
    result,
    system,
    tools_for,
    typed,
    user,
)
from .renderer_subject import RendererSubject

_PARTS = [{"type": "text", "text": "one\n"}, {"type": "text", "text": "\n two"}]


@check("renderer")
def text_parts_are_one_text(subject: RendererSubject) -> None:
    """A client that sends parts gets another prompt, or loses all but one of them."""
    for messages, place in _places(subject):
        as_text, as_parts = list(messages), list(messages)
        as_text[place] = _with(messages[place], "one\n\n two")
        as_parts[place] = _with(messages[place], _PARTS)
        _expect_equal(subject, as_text, as_parts, "as parts")


@check("renderer")
def null_content_writes_nothing(subject: RendererSubject) -> None:
    """The model reads the word None where nobody said anything."""
    for messages, place in _places(subject):
        empty, null, absent = list(messages), list(messages), copy.deepcopy(messages)
        empty[place], null[place] = _with(messages[place], ""), _with(messages[place], None)
        del absent[place]["content"]
        tools = tools_for(messages)
        for variant in (null, absent):
            if subject.takes(variant, tools) and subject.takes(empty, tools):
                text = subject.text(subject.renderer.render_ids(variant, tools=tools))
                said = subject.text(subject.renderer.render_ids(empty, tools=tools))
                for word in ("None", "null"):
                    expect(text.count(word) == said.count(word), f"null content is written as {word!r}: {brief(text)}")


@check("renderer")
def null_content_beside_calls_is_empty(subject: RendererSubject) -> None:
    """A turn that only calls tools renders differently for clients that send null and those that send ""."""
    subject.needs(subject.takes_results, "tool calls")
    rest = [result(), assistant()]
    empty: list[Message] = [user(), calling(""), *rest]
    null: list[Message] = [user(), _with(calling(), None), *rest]
    _expect_equal(subject, empty, null, "null beside calls")


@check("renderer")
def arguments_may_be_a_json_string(subject: RendererSubject) -> None:
    """OpenAI clients send arguments as a JSON string; the model sees a string in a string."""
    subject.needs(subject.takes_calls, "tool calls")
    as_text = call(arguments=json.dumps(ARGUMENTS, ensure_ascii=False))
    for one in (call(), as_text):
        sampled = subject.stopped(subject.sampled([user()], calling("", one), [TOOL]))
        parsed = subject.renderer.parse_response(sampled.completion, tools=[TOOL], prompt_ids=sampled.prompt)
        read = [typed(found.arguments) for found in parsed.tool_calls]
        expect(read == [typed(ARGUMENTS)], f"{brief(one)} reads back as {brief(parsed)}")
    written = [
        subject.text(subject.renderer.render_ids([user(), calling("", one)], tools=[TOOL])) for one in (call(), as_text)
    ]
    same = flat(written[0]) == flat(written[1])
    expect(same, f"a JSON string is written as {brief(written[1])}, a mapping as {brief(written[0])}")


@check("renderer")
def both_spellings_of_reasoning_are_one(subject: RendererSubject) -> None:
    """Reasoning that comes back from one server is lost on the way to another."""
    one: list[Message] = [user(), assistant(reasoning_content=THOUGHT)]
    other: list[Message] = [user(), assistant(reasoning=THOUGHT)]
    _expect_equal(subject, one, other, "with `reasoning` for `reasoning_content`")
    null: list[Message] = [user(), assistant(reasoning_content=None)]
    _expect_equal(subject, [user(), assistant()], null, "with null reasoning")


@check("renderer")
def bad_messages_are_named(subject: RendererSubject) -> None:
    """A fault in one of a thousand messages is found by bisection, or crashes the rollout."""
    bad: tuple[Any, ...] = (
        {"content": "no role"},
        {"role": None, "content": "null role"},
        {"role": 7, "content": "a number for a role"},
        {"role": "user", "content": 7},
        {"role": "user", "content": [{"type": "smell", "smell": "roses"}]},
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"arguments": {}}}]},
        {"role": "assistant", "content": "", "tool_calls": [call(arguments=[1, 2])]},
        {"role": "assistant", "content": "", "reasoning_content": 7},
        {"role": "assistant", "content": "", "reasoning_content": "one", "reasoning": "other"},
        "not a message",
    )
    for message in bad:
        try:
            subject.renderer.render_ids([user(), assistant(), message])
        except RenderError as error:
            expect("messages[2]" in str(error), f"the error for {brief(message)} does not name messages[2]: {error}")
        else:
            fail(f"{brief(message)} is accepted")


@check("renderer")
def an_empty_conversation_is_an_error(subject: RendererSubject) -> None:
    """A bug upstream trains on a prompt that says nothing."""
    try:
        subject.renderer.render_ids([])
    except RenderError:
        return
    fail("a conversation without messages is rendered")


@check("renderer")
def unknown_options_are_errors(subject: RendererSubject) -> None:
    """A misspelt option is ignored, and a run trains on the wrong format."""
    wrong: tuple[dict[str, Any], ...] = (
        {"no_such_option": True},
        {"content_tokens": "sometimes"},
        {"thinking_retention": "half"},
    )
    for options in wrong:
        try:
            subject.make(**options)
        except ConfigError:
            continue
        fail(f"the options {options} are accepted")


def _places(subject: RendererSubject) -> list[tuple[list[Message], int]]:
    """Return conversations, and the place in each whose body is exchanged."""
    places: list[tuple[list[Message], int]] = [([user(), assistant(), user(ASK_AGAIN)], 1), ([user(), assistant()], 1)]
    places += [([user(), assistant(), user(ASK_AGAIN)], 2), ([user()], 0)]
    if subject.takes_system:
        places.append(([system(), user()], 0))
    if subject.takes_results:
        places += [([user(), calling(SAY), result()], 1), ([user(), calling(), result()], 2)]
    return places


def _with(message: Message, content: Any) -> Message:
    return {**message, "content": content}


def _expect_equal(subject: RendererSubject, one: list[Message], other: list[Message], how: str) -> None:
    tools = tools_for(one)
    taken = subject.takes(one, tools)
    expect(subject.takes(other, tools) == taken, f"taken one way and refused {how}: {brief(other)}")
    if taken:
        ids = [subject.renderer.render_ids(messages, tools=tools) for messages in (one, other)]
        expect(ids[0] == ids[1], f"other ids {how}: {brief(subject.text(ids[1]))} for {brief(subject.text(ids[0]))}")
