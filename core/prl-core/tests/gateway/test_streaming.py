"""A stream ends in exactly the message of an answer that is not streamed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prl.gateway.answer import answered
from prl.gateway.stream import deltas
from prl.types import PromptTooLongError, Turn

from .conftest import Served
from .small import ASK, TOKENIZER, WEATHER, small_renderer

ASKED = [{"role": "user", "content": "Hi"}]
RENDERER = small_renderer()
SCRAPS = (
    "<think>",
    "</think>",
    "<call>",
    "</call>",
    "</s>",
    "<s>",
    "\n",
    '{"name": "f", "arguments": {"é": [1, "🦊"]}}',
)


def joined(parts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Add deltas up as OpenAI's clients do."""
    message: dict[str, Any] = {}
    for delta in parts:
        for name, value in delta.items():
            if name == "tool_calls":
                join_calls(message.setdefault("tool_calls", []), value)
            elif message.get(name) is None:
                message[name] = value
            else:
                message[name] += value
    return message


def join_calls(calls: list[dict[str, Any]], parts: list[dict[str, Any]]) -> None:
    for part in parts:
        if part["index"] == len(calls):
            calls.append({**part, "function": dict(part["function"])})
            del calls[-1]["index"]
        else:
            calls[part["index"]]["function"]["arguments"] += part["function"]["arguments"]


def turn_of(ids: list[int]) -> Turn:
    parsed = RENDERER.parse_response(ids, prompt_ids=[1, 2, 3])
    return Turn(
        prompt_ids=[1],
        completion_ids=ids,
        logprobs=[0.0] * len(ids),
        finish_reason="stop",
        weight_version=0,
        message=parsed.to_message(),
        parsed=parsed,
    )


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.sampled_from(SCRAPS) | st.text(max_size=6), max_size=9).map("".join),
    st.lists(st.integers(0, TOKENIZER.vocab_size - 1), max_size=4),
    st.integers(1, 9),
    st.booleans(),
)
def test_any_completion_in_any_chunks(text: str, tail: list[int], characters: int, may_call: bool) -> None:
    message = answered(turn_of([*TOKENIZER.encode(text), *tail]), TOKENIZER.decode, may_call=may_call)
    assert joined(deltas(message, characters)) == message


@pytest.mark.parametrize(
    "line", ["Hello", "", "cut...", f"<think>\nwell\n</think>\nLet me see. {ASK}{ASK}", ASK, "<call>broken"]
)
@pytest.mark.parametrize("characters", [1, 5, 1000])
async def test_over_http(serve: Callable[..., Any], line: str, characters: int) -> None:
    """Message, finish reason and usage of the stream are those of the answer; ids are the same at the same place."""
    served: Served = await serve(stream_characters=characters)
    served.engine.lines = [line, line]
    whole = await served.chat(ASKED, tools=[WEATHER])
    events = await served.stream(ASKED, tools=[WEATHER], stream_options={"include_usage": True})
    *chunks, usage = events
    assert joined(chunk["choices"][0]["delta"] for chunk in chunks) == whole.message
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + [whole.body["choices"][0]["finish_reason"]]
    assert (usage["choices"], usage["usage"]) == ([], whole.body["usage"])
    assert {chunk["usage"] for chunk in chunks} == {None}
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    assert len({event["id"] for event in events}) == 1


async def test_usage_only_where_it_is_asked_for(served: Served) -> None:
    events = await served.stream(ASKED)
    assert all("usage" not in event and event["choices"] for event in events)


async def test_several_choices_are_told_apart_by_index(served: Served) -> None:
    served.engine.lines = ["left", "right"]
    events = await served.stream(ASKED, n=2, logprobs=True)
    for index, text in enumerate(("left", "right")):
        mine = [event["choices"][0] for event in events if event["choices"][0]["index"] == index]
        assert joined(choice["delta"] for choice in mine)["content"] == text
        tokens = [row["token"] for choice in mine for row in (choice["logprobs"] or {"content": []})["content"]]
        assert tokens == [*text, "</s>"]


async def test_a_streamed_turn_is_gone_on_from(served: Served) -> None:
    served.engine.lines = [ASK, "ok"]
    message = joined(event["choices"][0]["delta"] for event in await served.stream(ASKED, tools=[WEATHER]))
    reply = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "sun"}
    await served.chat([*ASKED, message, reply], tools=[WEATHER])
    first, second = served.session.turns
    before = [*first.prompt_ids, *first.completion_ids]
    assert second.prompt_ids[: len(before)] == before


async def test_errors_come_as_statuses_also_where_a_stream_is_asked_for(served: Served) -> None:
    """An error inside a stream of status 200 is overlooked by half of all clients."""
    served.engine.lines = [PromptTooLongError("too long")]
    answer = await served.chat(ASKED, stream=True)
    assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")


async def raw_stream(served: Served, **fields: Any) -> tuple[int, str]:
    answer = await served.chat(ASKED, stream=True, **fields)
    return answer.status, answer.body


async def kept_stream(served: Served, *, silent: float) -> str:
    """Return the whole stream of a request whose engine said nothing for some seconds."""
    served.engine.gate = asyncio.Event()
    asked = asyncio.create_task(raw_stream(served))
    await served.until(lambda: bool(served.engine.requests))
    await asyncio.sleep(silent)
    served.engine.gate.set()
    status, text = await asked
    assert status == 200
    return text


async def test_a_long_sample_keeps_the_connection_open(serve: Callable[..., Any]) -> None:
    """Proxies close what is silent; the comments are no events, and the message is the same."""
    served: Served = await serve(keep_alive_seconds=0.02)
    served.engine.lines = ["Hello"]
    text = await kept_stream(served, silent=0.3)
    *silence, first = text.partition("data: ")[0].split("\n\n")
    assert len(silence) >= 2
    assert {*silence} == {": keep-alive"}
    assert first == ""
    events = [json.loads(part.removeprefix("data: ")) for part in text.split("\n\n")[len(silence) : -2]]
    assert joined(event["choices"][0]["delta"] for event in events) == {"role": "assistant", "content": "Hello"}
    assert text.endswith("data: [DONE]\n\n")


async def test_an_error_after_the_first_byte_is_an_event(serve: Callable[..., Any]) -> None:
    """The status is gone: OpenAI's SDKs raise what stands under "error", and no end follows that would hide it."""
    served: Served = await serve(keep_alive_seconds=0.02)
    served.engine.lines = [PromptTooLongError("too long"), "ok"]
    text = await kept_stream(served, silent=0.2)
    [event] = [part for part in text.split("\n\n") if part.startswith("data: ")]
    assert json.loads(event.removeprefix("data: "))["error"]["code"] == "context_length_exceeded"
    assert served.sessions() == []
    assert (await raw_stream(served))[1].endswith("[DONE]\n\n")


async def test_a_client_that_leaves_a_kept_stream_aborts_the_engines_request(serve: Callable[..., Any]) -> None:
    served: Served = await serve(keep_alive_seconds=0.02)
    served.engine.gate = asyncio.Event()
    asked = asyncio.create_task(raw_stream(served))
    await served.until(lambda: bool(served.engine.requests))
    await asyncio.sleep(0.05)
    asked.cancel()
    await served.until(lambda: served.engine.aborted == 1)
    await served.until(lambda: served.sessions() == [])
