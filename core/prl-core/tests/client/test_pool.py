"""A pool of engines: no request is lost, none is answered by other weights, whatever single engines do."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from prl.client import EnginePool, FixedAddresses, HttpEngineClient, PoolSettings, VllmRoute
from prl.client.pool import HttpConnect
from prl.contracts import EngineClient, RoutedEngine, TokenChatClient
from prl.types import (
    UNPUBLISHED,
    ConfigError,
    EngineError,
    EngineUnavailableError,
    GenerateRequest,
    MalformedResponseError,
    PromptTooLongError,
    RequestAbortedError,
    SamplingParams,
)

from . import fake_engines as fake
from .fake_engines import FakeServer

Servers = Callable[[int], Awaitable[list[FakeServer]]]
Pools = Callable[..., EnginePool]
REQUEST = GenerateRequest(model="m", prompt_token_ids=[1, 2])
QUICK: dict[str, Any] = {"backoff": 0.005, "patience": 5.0, "health_interval": 0.03}


@pytest.fixture
async def servers() -> AsyncIterator[Servers]:
    """Start small engines; they end with the test."""
    made: list[FakeServer] = []

    async def make(count: int) -> list[FakeServer]:
        for _ in range(count):
            made.append(FakeServer())
            await made[-1].start()
        return made[-count:]

    yield make
    for server in made:
        await server.stop()


@pytest.fixture
async def pool_of() -> AsyncIterator[Pools]:
    """Make pools; they end with the test."""
    pools: list[EnginePool] = []

    def make(servers: list[FakeServer], *, timeout: float | None = None, **settings: Any) -> EnginePool:
        discovery = FixedAddresses([server.url for server in servers])
        pools.append(EnginePool(discovery, PoolSettings(**QUICK | settings), connect=HttpConnect(timeout=timeout)))
        return pools[-1]

    yield make
    for pool in pools:
        await pool.close()


async def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


def all_ready(pool: EnginePool) -> bool:
    return all(one.ready for one in pool.status())


async def test_it_is_an_engine_client_to_whoever_uses_one(servers: Servers, pool_of: Pools) -> None:
    pool = pool_of(await servers(2))
    for client in (pool, pool.for_rollout()):
        assert isinstance(client, EngineClient)
        assert isinstance(client, TokenChatClient)
    assert isinstance(pool, RoutedEngine)
    assert not isinstance(HttpEngineClient("http://127.0.0.1:1"), RoutedEngine)


async def test_rollouts_are_spread_and_each_stays_on_its_engine(servers: Servers, pool_of: Pools) -> None:
    """A turn that goes to another engine pays for its whole prefix again."""
    engines = await servers(3)
    pool = pool_of(engines)
    await pool.models()
    await until(lambda: all_ready(pool))
    rollouts = [pool.for_rollout() for _ in range(9)]
    for turn in range(4):
        await asyncio.gather(
            *(
                rollout.generate(GenerateRequest(model="m", prompt_token_ids=[number, turn]))
                for number, rollout in enumerate(rollouts)
            )
        )
    served = [{body["prompt_token_ids"][0] for body in engine.requests} for engine in engines]
    assert [len(numbers) for numbers in served] == [3, 3, 3]
    assert set.union(*served) == set(range(9))
    assert [len(engine.requests) for engine in engines] == [12, 12, 12]


async def test_no_engine_runs_more_than_its_limit_and_nothing_that_waits_is_lost(
    servers: Servers, pool_of: Pools
) -> None:
    engines = await servers(2)
    for engine in engines:
        engine.delay = 0.01
    pool = pool_of(engines, max_concurrency=3)
    async with asyncio.timeout(60):
        answers = await asyncio.gather(*(pool.generate(REQUEST) for _ in range(40)))
    assert len(answers) == 40
    assert [engine.most_running for engine in engines] == [3, 3]
    assert all(one.active == 0 for one in pool.status())


async def test_a_rollout_finds_its_engine_again_in_any_order_of_turns(servers: Servers, pool_of: Pools) -> None:
    engines = await servers(3)
    pool = pool_of(engines)
    await pool.models()
    await until(lambda: all_ready(pool))
    rollouts = [pool.for_rollout() for _ in range(7)]
    for rollout in rollouts:
        await rollout.generate(REQUEST)
    first = [rollout.url for rollout in rollouts]
    dice = random.Random(1)
    for _ in range(40):
        await dice.choice(rollouts).generate(REQUEST)
        assert [rollout.url for rollout in rollouts] == first


async def test_data_parallel_ranks_are_lanes_of_one_engine(servers: Servers, pool_of: Pools) -> None:
    [engine] = await servers(1)
    engine.delay = 0.01
    pool = pool_of([engine], data_parallel_ranks=4, max_concurrency=1)
    await pool.load_weights("/w", 1)
    await asyncio.gather(*(pool.generate(REQUEST) for _ in range(16)))
    assert engine.ranks == {"0": 4, "1": 4, "2": 4, "3": 4}
    assert engine.most_running == 4
    assert engine.loads == [1], "weights go to the server, not to each rank"


@pytest.mark.parametrize("fault", [fake.reset, fake.half, fake.unavailable, fake.busy, fake.hang, fake.aborted])
async def test_a_request_that_its_engine_fails_is_answered_by_another_under_one_key(
    servers: Servers, pool_of: Pools, fault: fake.Fault
) -> None:
    engines = await servers(2)
    pool = pool_of(engines, timeout=0.5)
    await pool.models()
    await until(lambda: all_ready(pool))
    for engine in engines:
        engine.faults = [fault]
    answers = await asyncio.gather(*(pool.generate(REQUEST) for _ in range(6)))
    assert [answer.choices[0].token_ids for answer in answers] == [[7]] * 6
    keys = [body["request_id"] for engine in engines for body in engine.requests]
    assert len(keys) >= 8
    assert len(set(keys)) == 6
    await until(lambda: all_ready(pool))


async def test_what_another_engine_would_answer_alike_is_raised_at_once(servers: Servers, pool_of: Pools) -> None:
    engines = await servers(2)
    for engine in engines:
        engine.faults = [fake.too_long]
    pool = pool_of(engines)
    with pytest.raises(PromptTooLongError):
        await pool.generate(REQUEST)
    assert sum(len(engine.requests) for engine in engines) == 1
    assert all(one.active == 0 for one in pool.status())


async def test_an_answer_garbled_on_its_way_is_fetched_again_and_one_wrong_for_good_is_raised(
    servers: Servers, pool_of: Pools
) -> None:
    [engine] = await servers(1)
    pool = pool_of([engine])
    engine.faults = [fake.nonsense, fake.nonsense]
    assert (await pool.generate(REQUEST)).choices[0].token_ids == [7]
    assert len({body["request_id"] for body in engine.requests}) == 1, "the engine may repeat what it sampled"
    engine.requests.clear()
    engine.faults = [fake.nonsense] * 9
    with pytest.raises(MalformedResponseError):
        await pool.generate(REQUEST)
    assert len(engine.requests) == 3
    assert pool.status()[0].ready, "an engine that answers is not given up"


async def test_what_waits_for_an_engine_that_hangs_is_asked_of_another(servers: Servers, pool_of: Pools) -> None:
    """Its connections stay open, so that nothing but its health checks tells."""
    engines = await servers(2)
    pool = pool_of(engines)
    await pool.models()
    await until(lambda: all_ready(pool))
    for engine in engines:
        engine.delay = 60.0
    waiting = asyncio.create_task(pool.generate(REQUEST))
    await until(lambda: bool(engines[0].requests or engines[1].requests))
    hanging, other = engines if engines[0].requests else engines[::-1]
    hanging.healthy, other.delay = False, 0.0
    assert (await asyncio.wait_for(waiting, 30)).choices[0].token_ids == [7]
    assert [body["request_id"] for body in hanging.requests] == [body["request_id"] for body in other.requests]


async def test_a_load_is_not_given_up_because_the_server_is_too_busy_to_tell_its_health(
    servers: Servers, pool_of: Pools
) -> None:
    [engine] = await servers(1)
    pool = pool_of([engine])
    await pool.models()
    engine.load_delay = 0.5
    loading = asyncio.create_task(pool.load_weights("/w/1", 1))
    await asyncio.sleep(0.05)
    engine.healthy = False
    await until(lambda: not pool.status()[0].ready)
    await asyncio.sleep(0.2)
    engine.healthy = True
    await asyncio.wait_for(loading, 30)
    assert engine.loads == [1]
    assert (await pool.generate(REQUEST)).weight_version == 1


async def test_an_answer_lost_on_an_open_connection_is_asked_for_again_under_its_key(servers: Servers) -> None:
    """A proxy that swallows an answer leaves nothing to see: without this the rollout would wait for ever."""
    [engine] = await servers(1)
    engine.faults = [fake.hang, fake.hang]
    client = HttpEngineClient(engine.url, ask_again=0.05)
    try:
        answer = await asyncio.wait_for(client.generate(REQUEST), 30)
        assert answer.choices[0].token_ids == [7]
        assert len(engine.requests) == 3
        assert len({body["request_id"] for body in engine.requests}) == 1
    finally:
        await client.close()


async def test_a_server_without_keys_is_not_asked_twice(servers: Servers) -> None:
    """It would sample twice."""
    [engine] = await servers(1)
    engine.delay = 0.2
    client = HttpEngineClient(engine.url, ask_again=0.02, route=VllmRoute(), retries=0)
    try:
        with pytest.raises(MalformedResponseError):
            await client.generate(replace(REQUEST, sampling=SamplingParams(max_tokens=1)))
        assert len(engine.requests) == 1
    finally:
        await client.close()


async def test_retries_end(servers: Servers, pool_of: Pools) -> None:
    [engine] = await servers(1)
    engine.faults = [fake.aborted] * 9
    with pytest.raises(RequestAbortedError):
        await pool_of([engine], retries=3).generate(REQUEST)
    assert len(engine.requests) == 4
    engine.faults = [fake.unavailable] * 9
    with pytest.raises(EngineUnavailableError, match="still loading"):
        await pool_of([engine], retries=2).generate(REQUEST)


async def test_an_engine_that_died_is_left_out_and_comes_back_with_the_current_weights(
    servers: Servers, pool_of: Pools
) -> None:
    """A new process holds the weights it was started with: work before a load would be off-policy without a sign."""
    engines = await servers(2)
    pool = pool_of(engines)
    await pool.load_weights("/w/4", 4)
    await until(lambda: all_ready(pool))
    await engines[0].stop()
    for _ in range(6):
        assert (await pool.generate(REQUEST)).weight_version == 4
    await until(lambda: not pool.status()[0].ready)
    await pool.load_weights("/w/5", 5)
    engines[0].loads.clear()
    engines[0].requests.clear()
    await engines[0].start()
    await until(lambda: all_ready(pool))
    answers = await asyncio.gather(*(pool.generate(REQUEST) for _ in range(6)))
    assert {answer.weight_version for answer in answers} == {5}
    assert engines[0].loads == [5]
    assert engines[0].requests, "it works again"


@pytest.mark.parametrize("version", [4, 0])
async def test_an_engine_restarted_between_two_health_checks_is_found_out_by_its_answer(
    servers: Servers, pool_of: Pools, version: int
) -> None:
    """Also before the first step: the model that it was started with is not the weights that the run begins with."""
    [engine] = await servers(1)
    pool = pool_of([engine], health_interval=60.0)
    await pool.load_weights("/w/published", version)
    engine.version = UNPUBLISHED  # as a new process would
    assert (await pool.generate(REQUEST)).weight_version == version
    assert engine.loads == [version, version]
    first, second = (body["request_id"] for body in engine.requests)
    assert first != second, "the answer of the other weights was thrown away; under its key the engine would repeat it"


async def test_what_began_before_an_engine_came_back_does_not_take_it_out_again(
    servers: Servers, pool_of: Pools
) -> None:
    """A hundred requests that one crash broke must not cost a hundred reloads."""
    [engine] = await servers(1)
    pool = pool_of([engine])
    await pool.load_weights("/w/1", 1)

    async def reset_later(request: Any) -> Any:
        await asyncio.sleep(0.2)
        return await fake.reset(request)

    engine.faults = [reset_later, reset_later, fake.reset]
    answers = await asyncio.gather(*(pool.generate(REQUEST) for _ in range(3)))
    assert {answer.weight_version for answer in answers} == {1}
    assert engine.loads == [1, 1]


async def test_503_does_not_cost_a_healthy_engine_a_reload(servers: Servers, pool_of: Pools) -> None:
    [engine] = await servers(1)
    pool = pool_of([engine])
    await pool.load_weights("/w/1", 1)
    engine.faults = [fake.unavailable, fake.busy]
    await pool.generate(REQUEST)
    assert engine.loads == [1]


async def test_an_engine_that_says_when_to_come_back_is_left_alone_until_then(servers: Servers, pool_of: Pools) -> None:
    """A server that limits its rate is asked again at once, by everybody who waits, and limits it further."""
    [engine] = await servers(1)
    pool = pool_of([engine], patience=30.0)
    engine.faults = [fake.limited]
    began = asyncio.get_running_loop().time()
    await pool.generate(REQUEST)
    assert asyncio.get_running_loop().time() - began > 0.99, "it asked for one second"
    assert len(engine.requests) == 2


async def test_failing_health_checks_take_an_engine_out(servers: Servers, pool_of: Pools) -> None:
    engines = await servers(2)
    pool = pool_of(engines)
    await pool.models()
    await until(lambda: all_ready(pool))
    engines[0].healthy = False
    await until(lambda: not pool.status()[0].ready)
    before = len(engines[0].requests)
    await asyncio.gather(*(pool.generate(REQUEST) for _ in range(8)))
    assert len(engines[0].requests) == before
    engines[0].healthy = True
    await until(lambda: all_ready(pool))


async def test_weights_reach_every_engine_and_one_that_refuses_gets_no_work(servers: Servers, pool_of: Pools) -> None:
    engines = await servers(3)
    pool = pool_of(engines)
    await pool.models()
    await until(lambda: all_ready(pool))
    engines[2].refuses_weights = True
    await pool.load_weights("/w/1", 1)
    answers = await asyncio.gather(*(pool.generate(REQUEST) for _ in range(12)))
    assert {answer.weight_version for answer in answers} == {1}
    assert engines[2].requests == []
    assert [one.ready for one in pool.status()] == [True, True, False]
    assert "does not fit" in pool.status()[2].problem
    engines[2].refuses_weights = False
    await until(lambda: all_ready(pool))
    assert engines[2].loads == [1]


async def test_weights_that_no_engine_takes_are_an_error_and_the_old_ones_serve_on(
    servers: Servers, pool_of: Pools
) -> None:
    engines = await servers(2)
    pool = pool_of(engines)
    await pool.load_weights("/w/1", 1)
    await until(lambda: all_ready(pool))
    for engine in engines:
        engine.refuses_weights = True
    with pytest.raises(EngineError, match="does not fit"):
        await pool.load_weights("/w/2", 2)
    for engine in engines:
        engine.refuses_weights = False
    assert (await pool.generate(REQUEST)).weight_version == 1


async def test_with_no_engine_at_all_the_error_names_each_and_its_trouble(servers: Servers, pool_of: Pools) -> None:
    engines = await servers(2)
    await engines[0].stop()
    engines[1].model = "other"
    pool = pool_of([engines[1]])
    await pool.models()
    assert not await pool_of([engines[0]]).health()
    mixed = pool_of(engines, patience=0.2)
    await engines[1].stop()
    with pytest.raises(EngineUnavailableError) as caught:
        await mixed.generate(REQUEST)
    assert all(engine.url in caught.value.where for engine in engines)
    with pytest.raises(EngineUnavailableError):
        await mixed.models()
    with pytest.raises(EngineUnavailableError):
        await mixed.load_weights("/w", 1)


async def test_an_engine_of_another_model_gets_no_work(servers: Servers, pool_of: Pools) -> None:
    engines = await servers(2)
    engines[1].model = "other"
    pool = pool_of(engines[:1] + engines[1:])
    await until_known(pool)
    served = {card["id"] for card in await pool.models()}
    assert len(served) == 1
    refused = next(one for one in pool.status() if not one.ready)
    assert "the engine serves" in refused.problem


async def until_known(pool: EnginePool) -> None:
    await pool.models()
    await until(lambda: any("the engine serves" in one.problem for one in pool.status()))


async def test_the_context_is_the_smallest_of_the_engines(servers: Servers, pool_of: Pools) -> None:
    engines = await servers(3)
    pool = pool_of(engines)
    await pool.models()
    await until(lambda: all_ready(pool))
    [card] = await pool.models()
    assert card["max_model_len"] == min(100 + engine.port % 7 for engine in engines)


async def test_cancelling_frees_the_place(servers: Servers, pool_of: Pools) -> None:
    [engine] = await servers(1)
    pool = pool_of([engine], max_concurrency=1)
    await pool.models()
    engine.faults = [fake.hang]
    running = asyncio.create_task(pool.generate(REQUEST))
    waiting = [asyncio.create_task(pool.generate(REQUEST)) for _ in range(3)]
    await until(lambda: engine.running == 1)
    for task in (running, *waiting[:2]):
        task.cancel()
    await asyncio.gather(running, *waiting[:2], return_exceptions=True)
    assert (await waiting[2]).choices[0].token_ids == [7]
    assert pool.status()[0].active == 0


@pytest.mark.parametrize("urls", [[], ["http://a:1", "http://a:1"], ["a:1"]])
def test_addresses_that_make_no_pool_are_refused_at_once(urls: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        FixedAddresses(urls)
    assert caught.value.next_step


async def test_a_storm_of_faults_loses_no_rollout(servers: Servers, pool_of: Pools) -> None:
    """Two hundred rollouts of four turns, while connections break, engines stall and one is restarted twice."""
    engines = await servers(3)
    dice = random.Random(5)
    kinds = [fake.reset, fake.half, fake.unavailable, fake.busy, fake.aborted]
    pool = pool_of(engines, max_concurrency=16, retries=20)
    await pool.load_weights("/w/1", 1)
    for engine in engines:
        engine.faults = [dice.choice(kinds) for _ in range(12)]

    async def play(number: int) -> list[int]:
        rollout = pool.for_rollout()
        answers = [
            await rollout.generate(GenerateRequest(model="m", prompt_token_ids=[number, turn])) for turn in range(4)
        ]
        assert [answer.prompt_token_ids for answer in answers] == [[number, turn] for turn in range(4)]
        return [answer.weight_version for answer in answers]

    async def trouble() -> None:
        for _ in range(2):
            await asyncio.sleep(0.02)
            await engines[0].stop()
            await asyncio.sleep(0.05)
            await engines[0].start()

    async with asyncio.timeout(60):
        played, _ = await asyncio.gather(asyncio.gather(*(play(number) for number in range(200))), trouble())
    assert len(played) == 200
    assert {version for versions in played for version in versions} == {1}
    assert sum(one.active for one in pool.status()) == 0
