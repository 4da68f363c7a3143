"""What ends a completion, what is refused, and what a repeated request id gives."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from prl.types import (
    ConfigError,
    EngineUnavailableError,
    GenerateRequest,
    MalformedRequestError,
    PromptIds,
    PromptTooLongError,
    RequestAbortedError,
    SamplingParams,
)

PROMPT = [5, 6, 7, 8]


def ask(**sampling: Any) -> GenerateRequest:
    return GenerateRequest(model="tiny", prompt_token_ids=PROMPT, sampling=SamplingParams(**sampling))


async def test_a_stop_id_ends_the_completion_and_is_its_last_id(make_engine: Any) -> None:
    engine = await make_engine()
    free = (await engine.generate(ask(seed=1, max_tokens=20))).choices[0].token_ids
    stop = free[6]
    first = free.index(stop)
    choice = (await engine.generate(ask(seed=1, max_tokens=20, stop_token_ids=[stop]))).choices[0]
    assert choice.token_ids == free[: first + 1]
    assert choice.finish_reason == "stop"
    assert len(choice.logprobs) == first + 1


async def test_stop_ids_cannot_be_drawn_before_min_tokens(make_engine: Any) -> None:
    engine = await make_engine()
    everything_but_one = [token for token in range(600) if token != 42]
    response = await engine.generate(ask(n=4, seed=1, min_tokens=5, max_tokens=9, stop_token_ids=everything_but_one))
    for choice in response.choices:
        assert choice.token_ids[:5] == [42] * 5
        assert len(choice.token_ids) > 5
        assert choice.token_ids[5] == 42 or choice.finish_reason == "stop"


async def test_max_tokens_defaults_to_what_is_left_of_the_context(make_engine: Any) -> None:
    engine = await make_engine(max_model_len=60)
    choice = (await engine.generate(ask())).choices[0]
    assert len(choice.token_ids) == 56
    assert choice.finish_reason == "length"
    capped = (await engine.generate(ask(max_tokens=1000))).choices[0]
    assert len(capped.token_ids) == 56


async def test_usage_counts_prompt_and_all_choices(make_engine: Any) -> None:
    response = await (await make_engine()).generate(ask(n=3, max_tokens=5))
    assert response.usage == {"prompt_tokens": 4, "completion_tokens": 15, "total_tokens": 19}
    assert response.prompt_token_ids == PROMPT


@pytest.mark.parametrize("length", [60, 61, 300])
async def test_a_prompt_that_fills_the_context_is_a_typed_outcome(make_engine: Any, length: int) -> None:
    """Never a negative max_tokens, never a silently cut prompt."""
    engine = await make_engine(max_model_len=60)
    with pytest.raises(PromptTooLongError, match=f"{length} tokens") as caught:
        await engine.generate(GenerateRequest(model="tiny", prompt_token_ids=[1] * length))
    assert caught.value.code == "prompt_too_long"
    fits = await engine.generate(GenerateRequest(model="tiny", prompt_token_ids=[1] * 59))
    assert len(fits.choices[0].token_ids) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt_token_ids": []}, "empty"),
        ({"prompt_token_ids": [3, 600]}, "token id 600 is outside the vocabulary of 600"),
        ({"prompt_token_ids": [3, -1]}, "token id -1 is outside"),
        ({"data_parallel_rank": 1}, "rank 1 is out of range"),
        ({"data_parallel_rank": -1}, "rank -1 is out of range"),
        ({"sampling": SamplingParams(stop_token_ids=[9999])}, "token id 9999 is outside"),
        ({"sampling": SamplingParams(max_tokens=0)}, "max_tokens"),
        ({"sampling": SamplingParams(top_p=0.0)}, "top_p"),
        ({"sampling": SamplingParams(temperature=-1.0)}, "temperature"),
        ({"sampling": SamplingParams(temperature=float("nan"))}, "temperature"),
        ({"sampling": SamplingParams(temperature=1e-9)}, "too small"),
        ({"sampling": SamplingParams(n=0)}, "n"),
        ({"sampling": SamplingParams(min_tokens=9, max_tokens=3)}, "min_tokens = 9 is more than max_tokens = 3"),
    ],
)
async def test_a_wrong_request_is_refused_by_name(make_engine: Any, changes: dict[str, Any], message: str) -> None:
    engine = await make_engine()
    with pytest.raises(MalformedRequestError, match=message):
        await engine.generate(replace(ask(), **changes))


async def test_an_unknown_model_names_the_served_one(make_engine: Any) -> None:
    engine = await make_engine()
    with pytest.raises(Exception, match="'tinny' is not served") as caught:
        await engine.generate(replace(ask(), model="tinny"))
    assert caught.value.code == "unknown_model"
    assert "'tiny'" in caught.value.next_step


async def test_a_retry_with_the_same_id_gets_the_same_answer_without_sampling_again(make_engine: Any) -> None:
    engine = await make_engine()
    request = replace(ask(max_tokens=40), request_id="r1")  # no seed: sampling anew would differ
    first, twin = await asyncio.gather(engine.generate(request), engine.generate(request))
    later = await engine.generate(replace(request, prompt_token_ids=PromptIds(PROMPT)))  # as sessions keep them
    assert first.choices == twin.choices == later.choices
    assert engine.core.scheduler.counters.sampled_tokens == 40
    with pytest.raises(MalformedRequestError, match="used for another request"):
        await engine.generate(replace(request, prompt_token_ids=[9, 9]))


async def test_old_answers_are_forgotten_beyond_the_limit(make_engine: Any) -> None:
    """Remembered answers must not grow without bound over a long run."""
    engine = await make_engine(remembered_tokens=50)
    for i in range(10):
        await engine.generate(replace(ask(max_tokens=16), request_id=f"r{i}"))
    assert list(engine.core.book._entries) == ["r8", "r9"]


@pytest.mark.usefixtures("slow_steps")
async def test_cancelling_frees_the_row(make_engine: Any, wait_until: Any) -> None:
    engine = await make_engine()
    task = asyncio.create_task(engine.generate(ask(n=4)))
    scheduler = engine.core.scheduler
    await wait_until(lambda: scheduler.queue_sizes()[0] == 4)
    task.cancel()
    await wait_until(lambda: scheduler.queue_sizes() == (0, 0))
    assert scheduler.counters.aborted == 1
    assert scheduler.counters.sampled_tokens < 4 * 252
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len((await engine.generate(ask(max_tokens=3))).choices[0].token_ids) == 3


@pytest.mark.usefixtures("slow_steps")
async def test_one_of_two_waiters_may_leave(make_engine: Any, wait_until: Any) -> None:
    """A client that retries while its first connection dies must not lose the answer."""
    engine = await make_engine()
    request = replace(ask(max_tokens=100), request_id="shared")
    leaving, staying = asyncio.create_task(engine.generate(request)), asyncio.create_task(engine.generate(request))
    await wait_until(lambda: engine.core.scheduler.queue_sizes()[0] == 1)
    leaving.cancel()
    assert len((await staying).choices[0].token_ids) == 100


async def test_lower_priority_numbers_run_first(make_engine: Any) -> None:
    engine = await make_engine(max_batch_size=1, admission_window_ms=20)
    order: list[int] = []

    async def one(priority: int) -> None:
        await engine.generate(replace(ask(max_tokens=2), priority=priority))
        order.append(priority)

    await asyncio.gather(*(one(priority) for priority in (3, 1, 2)))
    assert order == [1, 2, 3]


@pytest.mark.usefixtures("slow_steps")
async def test_stopping_ends_every_request_with_a_typed_error(make_engine: Any, wait_until: Any) -> None:
    engine = await make_engine(max_batch_size=1)
    tasks = [asyncio.create_task(engine.generate(ask())) for _ in range(3)]
    await wait_until(lambda: sum(engine.core.scheduler.queue_sizes()) == 3)
    await engine.stop()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(result, RequestAbortedError)
    with pytest.raises(EngineUnavailableError, match="not ready"):
        await engine.generate(ask())


async def test_a_failing_forward_pass_fails_its_requests_and_the_engine_goes_on(
    make_engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from prl_engine_local.runner import ModelRunner

    engine = await make_engine()

    def out_of_memory(*_: Any) -> Any:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(ModelRunner, "decode", out_of_memory)
        with pytest.raises(Exception, match="out of memory") as caught:
            await engine.generate(ask(max_tokens=3))
        assert caught.value.code == "engine_failed"
    assert len((await engine.generate(ask(max_tokens=3))).choices[0].token_ids) == 3


async def test_in_process_client_obeys_the_contract(make_engine: Any) -> None:
    from prl.contracts import Engine, EngineClient

    engine = await make_engine(max_model_len=99)
    client = engine.client()
    assert isinstance(engine, Engine)
    assert isinstance(client, EngineClient)
    assert await client.health()
    assert [(m["id"], m["max_model_len"]) for m in await client.models()] == [("tiny", 99)]
    assert (await client.generate(ask(max_tokens=2))).weight_version == -1


async def test_an_architecture_the_cache_does_not_fit_is_refused_at_start(
    model_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong cache would serve wrong numbers without any sign; here the mask lets tokens see the future."""
    from prl_engine_local.engine import create
    from prl_engine_local.masks import MaskBuilder
    from prl_engine_local.options import LocalEngineOptions

    original = MaskBuilder.build
    monkeypatch.setattr(MaskBuilder, "build", lambda self, positions, visible: original(self, positions + 99, visible))
    with pytest.raises(ConfigError, match="differs from the plain one"):
        await create(LocalEngineOptions(model=model_dir)).start()
