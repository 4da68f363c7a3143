"""The HTTP client and the server, together: both ends of the wire agree."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from prl.client import HttpEngineClient
from prl.types import EngineError, GenerateRequest, MalformedRequestError, PromptTooLongError, SamplingParams

REQUEST = GenerateRequest(
    model="tiny",
    prompt_token_ids=[5, 6, 7, 8],
    sampling=SamplingParams(n=2, seed=3, max_tokens=20, temperature=0.8, top_k=50, stop_token_ids=[1, 2]),
    prompt_logprobs=True,
    request_id="one",
)


@pytest.fixture
async def pair(make_engine: Any, serve: Any) -> AsyncIterator[tuple[Any, HttpEngineClient]]:
    engine = await make_engine(max_model_len=200)
    client = HttpEngineClient(serve(engine).url, backoff=0.001)
    yield engine, client
    await client.close()


async def test_an_answer_is_the_same_over_http_and_in_process(pair: Any, make_engine: Any) -> None:
    _, client = pair
    other = await make_engine(max_model_len=200)
    over_http, direct = await client.generate(REQUEST), await other.client().generate(REQUEST)
    assert over_http == direct
    assert over_http.prompt_logprobs is not None


async def test_errors_have_the_same_type_over_http_and_in_process(pair: Any) -> None:
    engine, client = pair
    for prompt, model, kind in (
        ([1] * 200, "tiny", PromptTooLongError),
        ([600], "tiny", MalformedRequestError),
        ([], "tiny", MalformedRequestError),
        ([1], "other", EngineError),
    ):
        request = GenerateRequest(model=model, prompt_token_ids=prompt)
        for end in (client, engine.client()):
            with pytest.raises(kind):
                await end.generate(request)


@pytest.mark.usefixtures("slow_steps")
async def test_cancelling_a_client_call_frees_the_row(pair: Any, wait_until: Any) -> None:
    engine, client = pair
    scheduler = engine.core.scheduler
    task = asyncio.create_task(client.generate(GenerateRequest(model="tiny", prompt_token_ids=[1])))
    await wait_until(lambda: scheduler.queue_sizes()[0] == 1)
    task.cancel()
    await wait_until(lambda: scheduler.queue_sizes() == (0, 0))
    assert scheduler.counters.aborted == 1


async def test_a_hundred_concurrent_requests(pair: Any) -> None:
    _, client = pair
    requests = [
        GenerateRequest(model="tiny", prompt_token_ids=[5 + i, 6], sampling=SamplingParams(max_tokens=5, seed=i))
        for i in range(100)
    ]
    answers = await asyncio.gather(*(client.generate(request) for request in requests))
    assert [answer.prompt_token_ids[0] for answer in answers] == [5 + i for i in range(100)]
    assert all(len(answer.choices[0].token_ids) == 5 for answer in answers)


async def test_status_and_weights(pair: Any, new_model: Any, save: Any) -> None:
    _, client = pair
    assert await client.health()
    assert [(model["id"], model["max_model_len"]) for model in await client.models()] == [("tiny", 200)]
    await client.load_weights(save(new_model(5), "w"), 12)
    assert (await client.generate(REQUEST)).weight_version == 12
    with pytest.raises(EngineError, match="no such directory"):
        await client.load_weights("/nowhere", 13)
