"""The real `openai` SDK through the gateway to a real engine: exact tokens, streams, tools, errors and retries."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from engines.local import LocalServer
from openai import APIError, AsyncOpenAI, AuthenticationError, BadRequestError, NotFoundError, OpenAI

from gateway.agents import ScriptedEngine, said
from prl import load_tokenizer
from prl.client import HttpEngineClient
from prl.gateway import GatewaySession, GatewaySettings
from prl.trajectory import interleave_rollout
from prl.types import EngineUnreachableError, GenerateRequest, GenerateResponse, Rollout, SamplingParams

pytestmark = pytest.mark.heavy
BASH = {
    "type": "function",
    "function": {"name": "bash", "parameters": {"type": "object", "properties": {"command": {"type": "string"}}}},
}
ASKED: list[Any] = [{"role": "user", "content": "Hello there"}]


class Setup:
    """One session's key on a gateway, and the SDK's client for it."""

    def __init__(self, session: GatewaySession, url: str, engine: Any) -> None:
        self.session = session
        self.engine = engine
        self.url = url
        self.client = AsyncOpenAI(base_url=url, api_key=session.api_key, max_retries=2)

    def samples(self) -> Any:
        turns = self.session.turns
        return interleave_rollout(Rollout(trajectory_id="sdk", turns=turns, reward=0.0))


@pytest.fixture
async def setup(random_server: tuple[LocalServer, Path], gateway_on: Any) -> AsyncIterator[Setup]:
    server, model = random_server
    engine = HttpEngineClient(server.url)
    gateway, url = await gateway_on(engine, model, thinking_retention="all")
    made = Setup(gateway.open_session(), url, engine)
    yield made
    await made.client.close()


async def test_turns_of_a_random_model_are_recorded_exactly(setup: Setup) -> None:
    """The engine itself, asked for the log-probabilities of the recorded sequence, gives those that were recorded."""
    messages = list(ASKED)
    for text in ("And then?", "Go on.", "More."):
        answer = await setup.client.chat.completions.create(model="tiny", messages=messages, max_tokens=16, seed=3)
        message = answer.choices[0].message
        messages += [message.model_dump(exclude_unset=True), {"role": "user", "content": text}]
    result = setup.samples()
    [sample] = result.samples
    assert result.breaks == []
    assert sum(sample.completion_mask) == sum(len(turn.completion_ids) for turn in setup.session.turns)
    ids = sample.prompt_ids + sample.completion_ids
    scored = await setup.engine.generate(
        GenerateRequest(model="tiny", prompt_token_ids=ids, sampling=SamplingParams(max_tokens=1), prompt_logprobs=True)
    )
    assert scored.prompt_logprobs is not None
    again = scored.prompt_logprobs[len(sample.prompt_ids) :]
    pairs = zip(sample.completion_mask, sample.completion_logprobs, again, strict=True)
    assert max(abs(recorded - value) for is_sampled, recorded, value in pairs if is_sampled) < 1e-4


async def test_a_stream_ends_in_the_message_of_the_same_draw(setup: Setup) -> None:
    """The SDK's own accumulator, on the same seed with and without streaming."""
    fields: dict[str, Any] = {"model": "tiny", "messages": ASKED, "max_tokens": 24, "seed": 11}
    whole = await setup.client.chat.completions.create(**fields, logprobs=True)
    async with setup.client.chat.completions.stream(
        **fields, logprobs=True, stream_options={"include_usage": True}
    ) as stream:
        async for _ in stream:
            pass
        final: Any = stream.current_completion_snapshot  # the final one refuses a draw that hit its limit
    kept = {"content", "role", "tool_calls", "reasoning_content"}
    messages = [one.choices[0].message.model_dump() for one in (whole, final)]
    first, second = ({name: value for name, value in one.items() if name in kept and value} for one in messages)
    assert first == second
    assert final.choices[0].finish_reason == whole.choices[0].finish_reason
    assert final.usage == whole.usage
    assert final.choices[0].logprobs is not None
    assert final.choices[0].logprobs.content == whole.choices[0].logprobs.content  # type: ignore[union-attr]
    assert setup.session.turns[0].completion_ids == setup.session.turns[1].completion_ids


async def test_the_sync_client(setup: Setup) -> None:
    def talk() -> list[str | None]:
        with OpenAI(base_url=setup.url, api_key=setup.session.api_key) as client:
            assert [model.id for model in client.models.list()] == ["tiny"]
            answer = client.chat.completions.create(model="tiny", messages=ASKED, max_tokens=4, n=2)
            return [choice.message.content for choice in answer.choices]

    assert len(await asyncio.to_thread(talk)) == 2
    assert len(setup.session.turns) == 2


async def test_a_prompt_over_the_context_is_one_request(setup: Setup) -> None:
    """The SDK would send it again and again, and the agent would wait, if the status were another."""
    calls = count_calls(setup)
    with pytest.raises(BadRequestError) as caught:
        await setup.client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "Hello there, " * 2000}]
        )
    assert caught.value.code == "context_length_exceeded"
    assert len(calls) == 1


def count_calls(setup: Setup, fail: int = 0) -> list[GenerateRequest]:
    """Note each request to the engine; the first `fail` do not get through."""
    calls: list[GenerateRequest] = []
    generate = setup.engine.generate

    async def counted(request: GenerateRequest) -> Any:
        calls.append(request)
        if len(calls) <= fail:
            raise EngineUnreachableError("gone for a moment", next_step="wait")
        return await generate(request)

    setup.engine.generate = counted
    return calls


async def test_the_sdk_waits_for_an_engine_that_comes_back(setup: Setup) -> None:
    """503 with `Retry-After`: the SDK tries again by itself, and one turn is recorded."""
    calls = count_calls(setup, fail=1)
    answer = await setup.client.chat.completions.create(model="tiny", messages=ASKED, max_tokens=4)
    assert answer.choices[0].message.role == "assistant"
    assert (len(calls), len(setup.session.turns)) == (2, 1)


async def test_a_closed_session_ends_the_agents_requests(setup: Setup) -> None:
    await setup.session.close()
    with pytest.raises(AuthenticationError):
        await setup.client.chat.completions.create(model="tiny", messages=ASKED)


async def test_a_time_out_of_the_sdk_leaves_one_turn(setup: Setup) -> None:
    """The SDK gives up, and asks again: the first try was aborted or is joined, never a second turn."""
    generate, slow = setup.engine.generate, [1.0]

    async def late(request: GenerateRequest) -> Any:
        await asyncio.sleep(slow.pop() if slow else 0)
        return await generate(request)

    setup.engine.generate = late
    hurried = setup.client.with_options(timeout=0.5, max_retries=9)
    await hurried.chat.completions.create(model="tiny", messages=ASKED, max_tokens=4)
    await asyncio.sleep(0.8)
    assert len(setup.session.turns) == 1


WORKS: list[dict[str, Any]] = [
    {"logprobs": True},
    {"logprobs": True, "top_logprobs": 0},
    {"n": 2},
    {"seed": 3, "temperature": 0.5, "top_p": 0.9},
    {"stop": "zzz"},
    {"stop": ["zzz", "yyy"]},
    {"max_tokens": 5, "max_completion_tokens": 9},
    {"tools": [BASH], "tool_choice": "auto", "parallel_tool_calls": True},
    {"tools": [BASH], "tool_choice": "none"},
    {"response_format": {"type": "text"}, "frequency_penalty": 0, "modalities": ["text"]},
    {"user": "me", "metadata": {"a": "b"}, "store": True, "service_tier": "auto", "prompt_cache_key": "x"},
    {"extra_body": {"top_k": 5, "min_tokens": 1}},
]
CALL = {"type": "function", "function": {"name": "bash"}}
REFUSED: dict[str, Any] = {
    "top_logprobs": 2,
    "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}},
    "tool_choice": CALL,
    "parallel_tool_calls": False,
    "reasoning_effort": "low",
    "verbosity": "low",
    "presence_penalty": 0.5,
    "logit_bias": {"5": 1},
    "functions": [CALL["function"]],
    "web_search_options": {},
    "extra_body": {"chat_template_kwargs": {"enable_thinking": False}},
}


@pytest.mark.parametrize("streams", [False, True])
async def test_each_parameter_works_or_is_refused_by_name(
    random_server: tuple[LocalServer, Path], gateway_on: Any, streams: bool
) -> None:
    """A field that is dropped without a word trains on something else than the agent asked for."""
    line = "<think>\nso\n</think>\n\nHello.<|im_end|>"
    engine = ScriptedEngine(load_tokenizer(str(random_server[1])), [line])
    gateway, url = await gateway_on(engine, random_server[1])
    setup = Setup(gateway.open_session(), url, engine)
    create = setup.client.chat.completions.create
    fields: dict[str, Any] = {"model": "tiny", "messages": ASKED, "stream": streams}
    if streams:
        fields["stream_options"] = {"include_usage": True}
    for asked in WORKS:
        answer = await create(**fields, **asked)
        parts = [part async for part in answer] if streams else [answer]
        chosen = [choice for part in parts for choice in part.choices]
        assert {choice.index for choice in chosen} == set(range(asked.get("n", 1))), asked
        assert any(choice.logprobs for choice in chosen) is asked.get("logprobs", False), asked
        assert parts[-1].usage.completion_tokens > 0
    turns = len(setup.session.turns)
    for name, value in REFUSED.items():
        with pytest.raises(BadRequestError) as caught:
            await create(**fields, **{name: value})
        assert str(caught.value.param).startswith(next(iter(value)) if name == "extra_body" else name)
        assert "Next: " in caught.value.message
    assert len(setup.session.turns) == turns
    await setup.client.close()


async def test_what_is_served_and_what_is_not(setup: Setup) -> None:
    client = setup.client.with_options(max_retries=0)
    assert (await client.models.retrieve("tiny")).id == "tiny"
    calls = (
        lambda: client.models.retrieve("other/model"),
        lambda: client.responses.create(model="tiny", input="Hi"),
        lambda: client.completions.create(model="tiny", prompt="Hi"),
        lambda: client.post("/messages", body={"model": "tiny"}, cast_to=object),
    )
    for call in calls:
        with pytest.raises(NotFoundError) as caught:
            await call()  # type: ignore[no-untyped-call]
        assert "Next: ask for" in caught.value.message


@pytest.mark.parametrize("streams", [False, True])
async def test_a_tool_loop(
    random_server: tuple[LocalServer, Path], gateway_on: Any, streams: bool, make_call: Callable[..., Any]
) -> None:
    """Calls as the SDK reads them, sent back as the SDK writes them: one sample, no break."""
    tokenizer = load_tokenizer(str(random_server[1]))
    engine = ScriptedEngine(
        tokenizer, [said("look", "ls"), said("again", "pwd"), "<think>\nso\n</think>\n\nDone.<|im_end|>"]
    )
    gateway, url = await gateway_on(engine, random_server[1])
    setup = Setup(gateway.open_session(), url, engine)
    messages: list[Any] = [{"role": "user", "content": "Where am I?"}]
    for command in ("ls", "pwd"):
        message = await make_call(setup.client, messages, streams)
        [call] = message.tool_calls
        assert call.function.name == "bash"
        assert call.function.arguments == f'{{"command": "{command}"}}'
        messages += [message.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": "x\n"}]
    assert (await make_call(setup.client, messages, streams)).content == "Done."
    result = setup.samples()
    assert (len(result.samples), result.breaks) == (1, [])
    await setup.client.close()


@pytest.mark.parametrize("streams", [False, True])
async def test_a_react_agent_stops_at_its_observation(
    random_server: tuple[LocalServer, Path], gateway_on: Any, streams: bool, make_call: Callable[..., Any]
) -> None:
    """A text agent without tools: what the model invents behind the stop is neither sent nor recorded."""
    step = "<think>\nso\n</think>\n\nAction: look\nObservation: a dragon<|im_end|>"
    tokenizer = load_tokenizer(str(random_server[1]))
    engine = ScriptedEngine(tokenizer, [step, step, "<think>\nso\n</think>\n\nAnswer: a cat<|im_end|>"])
    gateway, url = await gateway_on(engine, random_server[1], thinking_retention="all")
    setup = Setup(gateway.open_session(), url, engine)
    messages: list[Any] = [{"role": "user", "content": "Who is there?"}]
    for _ in range(2):
        message = await make_call(setup.client, messages, streams, stop=["\nObservation:"])
        assert message.content == "Action: look"
        messages += [message.model_dump(), {"role": "user", "content": "Observation: a cat"}]
    assert (await make_call(setup.client, messages, streams, stop="\nObservation:")).content == "Answer: a cat"
    result = setup.samples()
    assert (len(result.samples), result.breaks) == (1, [])
    assert "dragon" not in tokenizer.decode(result.samples[0].completion_ids)
    await setup.client.close()


class SlowEngine(ScriptedEngine):
    """Thinks for a while; then answers, or is gone."""

    failure: EngineUnreachableError | None = None

    async def generate(self, request: GenerateRequest) -> GenerateResponse:
        await asyncio.sleep(0.3)
        if self.failure is not None:
            raise self.failure
        return await super().generate(request)


async def test_a_stream_that_is_kept_open(
    random_server: tuple[LocalServer, Path], gateway_on: Any, make_call: Callable[..., Any]
) -> None:
    """The SDK skips the comments, and raises the error of a stream that had begun."""
    engine = SlowEngine(load_tokenizer(str(random_server[1])), ["<think>\nso\n</think>\n\nHello.<|im_end|>"])
    gateway, url = await gateway_on(engine, random_server[1], GatewaySettings(keep_alive_seconds=0.05))
    setup = Setup(gateway.open_session(), url, engine)
    assert (await make_call(setup.client, ASKED, True)).content == "Hello."
    engine.failure = EngineUnreachableError("the engine is gone")
    with pytest.raises(APIError, match="the engine is gone"):
        await make_call(setup.client, ASKED, True)
    assert len(setup.session.turns) == 1
    await setup.client.close()


@pytest.fixture
def make_call() -> Callable[..., Any]:
    async def call(client: AsyncOpenAI, messages: list[Any], streams: bool, **more: Any) -> Any:
        fields: dict[str, Any] = {"model": "tiny", "messages": messages, **(more or {"tools": [BASH]})}
        if not streams:
            return (await client.chat.completions.create(**fields)).choices[0].message
        async with client.chat.completions.stream(**fields) as stream:
            return (await stream.get_final_completion()).choices[0].message

    return call
