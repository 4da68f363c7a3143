"""Client modes: a conversation keeps the exact ids, whatever the renderer, the server or an error does."""

from __future__ import annotations

import copy
import threading
from dataclasses import replace
from typing import Any

import pytest

from prl.client.modes import ChatModeOptions, RendererModeOptions, create_chat_mode, create_renderer_mode
from prl.contracts import ChatSession, ClientMode
from prl.types import (
    AlignmentError,
    ConfigError,
    EncodedIds,
    GenerateChoice,
    GenerateRequest,
    GenerateResponse,
    MalformedResponseError,
    Message,
    ParsedResponse,
    PromptTooLongError,
    RenderedTokens,
    RequestAbortedError,
    SamplingParams,
)

S, E = 1, 2
HI: Message = {"role": "user", "content": "hi"}
GO: Message = {"role": "user", "content": "go"}
SAMPLING = SamplingParams(max_tokens=9, temperature=0.7)


def said(text: str, *, close: bool = True, version: int = 3) -> GenerateResponse:
    ids = [*map(ord, text), *([E] if close else [])]
    choice = GenerateChoice(token_ids=ids, logprobs=[-0.5] * len(ids), finish_reason="stop" if close else "length")
    return GenerateResponse(choices=(choice,), weight_version=version)


def ids(text: str) -> list[int]:
    return [S, *map(ord, text), E]


async def test_a_renderer_session_extends_its_own_ids(renderer: Any, scripted: Any) -> None:
    engine = scripted(said("yo"), said("ok", version=4))
    mode = create_renderer_mode(engine, renderer, RendererModeOptions())
    session = mode.session(model="m", cache_salt="v3")
    first = await session.turn([HI], SAMPLING)
    second = await session.turn([GO], SAMPLING)
    assert first.prompt_ids == [*ids("hi"), S]
    assert first.completion_ids == [*map(ord, "yo"), E]
    assert second.prompt_ids == [*first.prompt_ids, *first.completion_ids, *ids("go"), S]
    assert second.prompt_ids.shares(first.prompt_ids), "a turn of a long rollout must not copy all that came before"
    assert (first.weight_version, second.weight_version) == (3, 4)
    assert (first.temperature, first.finish_reason, first.logprobs) == (0.7, "stop", [-0.5] * 3)
    assert first.parsed == ParsedResponse("yo")
    assert session.messages == [HI, first.message, GO, second.message]
    assert renderer.full_renders == 1
    assert isinstance(mode, ClientMode)
    assert isinstance(session, ChatSession)


async def test_the_salt_is_fixed_for_the_whole_rollout_and_the_renderers_stop_ids_are_sent(
    renderer: Any, scripted: Any
) -> None:
    """Keys computed by other weights must not be reused, and a turn must end where the format ends it."""
    engine = scripted(said("a"), said("b"), said("c"))
    mode = create_renderer_mode(engine, renderer)
    old = mode.session(model="m", cache_salt="v1", seed=7)
    await old.turn([HI], SAMPLING)
    await mode.session(model="m", cache_salt="v2").turn([HI], SamplingParams(stop_token_ids=[9, E]))
    await old.turn([GO], SAMPLING)
    assert [request.cache_salt for request in engine.generated] == ["v1", "v2", "v1"]
    assert [tuple(request.sampling.stop_token_ids) for request in engine.generated] == [(E,), (E, 9), (E,)]
    seeds = [request.sampling.seed for request in engine.generated]
    assert seeds[1] is None
    assert seeds[0] is not None
    assert seeds[0] != seeds[2], "each turn draws anew"


async def test_a_sessions_seed_makes_its_turns_repeatable(renderer: Any, scripted: Any) -> None:
    engine = scripted(said("a"), said("a"), said("a"))
    mode = create_renderer_mode(engine, renderer)
    for seed in (7, 7, 8):
        await mode.session(model="m", seed=seed).turn([HI], SAMPLING)
    seeds = [request.sampling.seed for request in engine.generated]
    assert seeds[0] == seeds[1] != seeds[2]


async def test_without_a_bridge_the_whole_conversation_is_rendered(renderer: Any, scripted: Any) -> None:
    renderer.can_bridge = False
    session = create_renderer_mode(scripted(said("yo", close=False), said("ok")), renderer).session(model="m")
    await session.turn([HI], SAMPLING)
    second = await session.turn([GO], SAMPLING)
    assert second.prompt_ids == [*ids("hi"), *ids("yo"), *ids("go"), S]
    assert renderer.full_renders == 2


async def test_a_bridge_that_changes_what_was_sampled_is_caught(
    renderer: Any, scripted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This is the one promise: the trainer sees the ids the sampler saw."""
    engine = scripted(said("yo"))
    session = create_renderer_mode(engine, renderer).session(model="m")
    await session.turn([HI], SAMPLING)
    monkeypatch.setattr(renderer, "bridge_to_next_turn", lambda *a, **k: RenderedTokens([5, 6], None))
    with pytest.raises(AlignmentError, match="does not begin"):
        await session.turn([GO], SAMPLING)
    assert len(engine.generated) == 1


@pytest.mark.parametrize("mode_name", ["renderer", "chat"])
async def test_an_overlong_prompt_leaves_the_session_as_it_was(renderer: Any, scripted: Any, mode_name: str) -> None:
    """Earlier turns stay trainable, and a shorter message may still be sent."""
    too_long = PromptTooLongError("too long")
    if mode_name == "renderer":
        engine = scripted(said("yo"), too_long, said("ok"))
        session: Any = create_renderer_mode(engine, renderer).session(model="m")
    else:
        engine = scripted(chatted("yo"), too_long, chatted("ok"))
        session = create_chat_mode(engine).session(model="m")
    first = await session.turn([HI], SAMPLING)
    with pytest.raises(PromptTooLongError):
        await session.turn([{"role": "user", "content": "x" * 999}], SAMPLING)
    assert session.messages == [HI, first.message]
    await session.turn([GO], SAMPLING)
    assert [message["role"] for message in session.messages] == ["user", "assistant", "user", "assistant"]
    if mode_name == "renderer":
        assert engine.generated[2].prompt_token_ids == [*first.prompt_ids, *first.completion_ids, *ids("go"), S]


async def test_long_messages_are_rendered_and_parsed_off_the_event_loop(
    renderer: Any, scripted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[bool] = []
    render, parse = renderer.render_ids, renderer.parse_response

    def note() -> None:
        threads.append(threading.current_thread() is threading.main_thread())

    def noting_render(*args: Any, **kwargs: Any) -> list[int]:
        note()
        return render(*args, **kwargs)  # type: ignore[no-any-return]

    def noting_parse(*args: Any, **kwargs: Any) -> ParsedResponse:
        note()
        return parse(*args, **kwargs)  # type: ignore[no-any-return]

    monkeypatch.setattr(renderer, "render_ids", noting_render)
    monkeypatch.setattr(renderer, "parse_response", noting_parse)
    mode = create_renderer_mode(scripted(said("a"), said("b" * 30)), renderer, RendererModeOptions(thread_above=100))
    await mode.session(model="m").turn([HI], SAMPLING)
    await mode.session(model="m").turn([{"role": "user", "content": "x" * 101}], SAMPLING)
    assert threads == [True, True, False, False]


async def test_several_completions_of_one_conversation_are_refused(renderer: Any, scripted: Any) -> None:
    for mode in (create_renderer_mode(scripted(), renderer), create_chat_mode(scripted())):
        with pytest.raises(ConfigError, match="n = 2"):
            await mode.session(model="m").turn([HI], SamplingParams(n=2))


def test_the_renderer_mode_needs_a_renderer(scripted: Any) -> None:
    with pytest.raises(ConfigError, match="needs a renderer"):
        create_renderer_mode(scripted(), None)


def chatted(text: str, **changes: Any) -> dict[str, Any]:
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text, "tool_calls": None, "refusal": None},
        "finish_reason": "stop",
        "token_ids": [*map(ord, text)],
        "logprobs": {"content": [{"token": "t", "logprob": -0.5, "top_logprobs": []} for _ in text]},
    }
    return {"choices": [choice | changes], "prompt_token_ids": [9, 8], "weight_version": 6, "usage": {}}


async def test_a_chat_session_records_the_ids_the_server_used(scripted: Any) -> None:
    engine = scripted(chatted("yo"), chatted("ok"))
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    session = create_chat_mode(engine).session(model="m", tools=tools, cache_salt="v6", seed=1)
    turn = await session.turn([HI], SAMPLING)
    await session.turn([GO], SAMPLING)
    assert (turn.prompt_ids, turn.completion_ids, turn.logprobs) == ([9, 8], [*map(ord, "yo")], [-0.5, -0.5])
    assert (turn.weight_version, turn.finish_reason, turn.temperature) == (6, "stop", 0.7)
    assert turn.message == {"role": "assistant", "content": "yo"}
    assert turn.parsed == ParsedResponse("yo")
    sent = engine.chats[1]
    assert sent["messages"] == [HI, {"role": "assistant", "content": "yo"}, GO]
    assert sent["return_token_ids"] is True
    assert (sent["model"], sent["tools"], sent["cache_salt"], sent["max_tokens"]) == ("m", tools, "v6", 9)
    assert sent["seed"] != engine.chats[0]["seed"]


async def test_tool_calls_travel_as_json_strings_and_broken_ones_are_kept(scripted: Any) -> None:
    calls = [
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x": true}'}},
        {"id": "b", "type": "function", "function": {"name": "f", "arguments": '{"x": '}},
        {"id": "c", "type": "function", "function": {"name": "f", "arguments": "[1]"}},
        {"id": "d", "type": "function", "function": {"name": "f", "arguments": "[" * 100_000}},
    ]
    message = {"role": "assistant", "content": None, "reasoning": "hm", "tool_calls": calls}
    engine = scripted(chatted("yo", message=message, finish_reason="tool_calls"), chatted("ok"))
    session = create_chat_mode(engine).session(model="m")
    earlier: Message = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"function": {"name": "g", "arguments": {"y": False}}}],
    }
    before = copy.deepcopy(earlier)
    turn = await session.turn([HI, earlier], SAMPLING)
    assert engine.chats[0]["messages"][1]["tool_calls"] == [
        {"type": "function", "function": {"name": "g", "arguments": '{"y": false}'}}
    ]
    assert earlier == before, "the caller's messages must not be changed"
    assert turn.parsed is not None
    assert [(call.id, call.arguments) for call in turn.parsed.tool_calls] == [("a", {"x": True})]
    assert [call.raw for call in turn.parsed.invalid_tool_calls] == ['{"x": ', "[1]", "[" * 100_000]
    assert turn.parsed.reasoning_content == "hm"
    assert turn.message["tool_calls"] == calls
    assert turn.finish_reason == "stop"


async def test_with_a_renderer_the_chat_mode_parses_the_ids(renderer: Any, scripted: Any) -> None:
    session = create_chat_mode(
        scripted(chatted("yo", message={"role": "assistant", "content": "?"})), renderer
    ).session(model="m")
    assert (await session.turn([HI], SAMPLING)).parsed == ParsedResponse("yo")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({**chatted("yo"), "prompt_token_ids": None}, "names no token ids"),
        (chatted("yo", token_ids=None), "names no token ids"),
        (chatted("yo", logprobs=None), "2 token ids but 0"),
        (chatted("yo", logprobs={"content": [{"logprob": -1.0}]}), "2 token ids but 1"),
        (chatted("yo", logprobs={"content": [{"logprob": -1.0}, {"logprob": -9999.0}]}), "no log-probability"),
        ({**chatted("yo"), "weight_version": None}, "which weights"),
        ({**chatted("yo"), "choices": []}, "0 came"),
        ({"error": "x"}, "not a chat completion"),
        (chatted("yo", message={"content": ["yo"]}), "not a chat completion"),
        (chatted("yo", message={"content": "yo", "tool_calls": ["f"]}), "not a chat completion"),
        (chatted("yo", message={"content": "yo", "tool_calls": [{"function": {}}]}), "not a chat completion"),
    ],
)
async def test_a_chat_answer_without_exact_ids_is_refused(scripted: Any, answer: Any, message: str) -> None:
    session = create_chat_mode(scripted(answer)).session(model="m")
    with pytest.raises(MalformedResponseError, match=message):
        await session.turn([HI], SAMPLING)
    assert session.messages == []


async def test_an_aborted_chat_answer_is_never_used(scripted: Any) -> None:
    with pytest.raises(RequestAbortedError):
        await create_chat_mode(scripted(chatted("yo", finish_reason="abort"))).session(model="m").turn([HI], SAMPLING)


@pytest.mark.parametrize("reason", ["error", "content_filter", "function_call"])
async def test_a_chat_answer_that_broke_off_is_no_finished_turn(scripted: Any, reason: str) -> None:
    """A turn that the server broke off, or filtered, was trained as one that the model had ended so."""
    session = create_chat_mode(scripted(chatted("yo", finish_reason=reason))).session(model="m")
    with pytest.raises(MalformedResponseError, match=f"finish_reason is '{reason}'"):
        await session.turn([HI], SAMPLING)
    assert session.messages == []


async def test_routing_of_a_chat_answer_is_kept(scripted: Any) -> None:
    """The trainer replays the sampler's experts: a mode that drops them trains other experts, and says nothing."""
    engine = scripted(chatted("yo", routed_experts=[[[1]], [[2]], [[3]]]))
    turn = await create_chat_mode(engine).session(model="m").turn([HI], SAMPLING)
    assert turn.routed_experts == [[[1]], [[2]], [[3]]]


async def test_a_server_of_fixed_weights_may_have_its_version_set(scripted: Any) -> None:
    answer = {**chatted("yo"), "weight_version": None}
    options = ChatModeOptions(weight_version=0, extra_body={"top_logprobs": 1})
    engine = scripted(answer)
    turn = await create_chat_mode(engine, None, options).session(model="m").turn([HI], SAMPLING)
    assert turn.weight_version == 0
    assert engine.chats[0]["top_logprobs"] == 1


async def test_a_growing_prompt_is_sent_as_it_is_and_not_encoded_anew(fake: Any, connect: Any, renderer: Any) -> None:
    """The kept text must always be that of the ids; one of an earlier turn would sample from another prompt."""
    session = create_renderer_mode(connect(fake.url), renderer).session(model="m")
    for turn, completion in enumerate([[65, 2], [66, 67, 2], [2]]):
        choice = {"token_ids": completion, "logprobs": [-0.5] * len(completion), "finish_reason": "stop"}
        fake.replies = [(200, {"choices": [choice], "weight_version": 0})]
        renderer.can_bridge = turn != 1
        taken = await session.turn([{"role": "user", "content": f"turn {turn}"}], SamplingParams())
        assert fake.requests[-1][1]["prompt_token_ids"] == taken.prompt_ids


def test_kept_json_counts_for_its_own_list_alone() -> None:
    ids = [1, 2]
    request = GenerateRequest(model="m", prompt_token_ids=ids, encoded=EncodedIds(ids, b"[1,2]"))
    assert request.prompt_json == b"[1,2]"
    assert replace(request, prompt_token_ids=[3]).prompt_json is None


async def test_an_answer_that_repeats_the_prompt_in_other_words_is_for_the_same_prompt(fake: Any, connect: Any) -> None:
    ids = [1, 2]
    request = GenerateRequest(model="m", prompt_token_ids=ids, encoded=EncodedIds(ids, b"[1,2]"))
    choice = {"token_ids": [7], "logprobs": [-0.5], "finish_reason": "stop"}
    fake.replies = [(200, {"choices": [choice], "weight_version": 0, "prompt_token_ids": [1, 2]})]
    assert (await connect(fake.url).generate(request)).choices[0].token_ids == [7]
    fake.replies = [(200, {"choices": [choice], "weight_version": 0, "prompt_token_ids": [1, 3]})]
    with pytest.raises(MalformedResponseError, match="other prompt ids"):
        await connect(fake.url).generate(request)
