"""An elastic pool: engines come and go while rollouts run."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from prl.client import DnsDiscovery, EnginePool, PoolSettings
from prl.client.pool import HttpConnect
from prl.client.pool.discovery import resolve_with_system
from prl.types import ConfigError, EngineUnavailableError, GenerateRequest

from . import fake_engines as fake
from .fake_engines import FakeServer
from .test_pool import QUICK, until

REQUEST = GenerateRequest(model="m", prompt_token_ids=[1, 2])


class Elastic:
    """A name whose answer the test changes. Engines of a test share an IP address, so names stand for ports."""

    interval: float | None = 0.02

    def __init__(self) -> None:
        self.servers: list[FakeServer] = []
        self.fails = False

    async def addresses(self) -> Sequence[str]:
        if self.fails:
            raise EngineUnavailableError("'engines' does not resolve", where="dns", next_step="")
        return [server.url for server in self.servers]


@pytest.fixture
async def elastic() -> Any:
    names = Elastic()
    pool = EnginePool(names, PoolSettings(**QUICK), connect=HttpConnect())
    made: list[FakeServer] = []

    async def add() -> FakeServer:
        server = FakeServer()
        made.append(server)
        await server.start()
        names.servers.append(server)
        return server

    yield pool, names, add
    await pool.close()
    for server in made:
        await server.stop()


async def test_a_new_engine_gets_the_current_weights_before_it_gets_work(elastic: Any) -> None:
    pool, _, add = elastic
    first = await add()
    await pool.load_weights("/w/7", 7)
    second = await add()
    await until(lambda: len(pool.status()) == 2 and all(one.ready for one in pool.status()))
    assert second.loads == [7]
    assert second.requests == []
    answers = await asyncio.gather(*(pool.generate(REQUEST) for _ in range(8)))
    assert {answer.weight_version for answer in answers} == {7}
    assert (len(first.requests), len(second.requests)) == (4, 4)


async def test_weights_published_while_an_engine_comes_in_are_the_ones_it_gets(elastic: Any) -> None:
    pool, _, add = elastic
    await add()
    await pool.load_weights("/w/1", 1)
    late = await add()
    late.healthy = False
    await until(lambda: len(pool.status()) == 2)
    await pool.load_weights("/w/2", 2)
    late.healthy = True
    await until(lambda: all(one.ready for one in pool.status()))
    assert late.loads == [2]


async def test_an_engine_that_leaves_ends_what_it_runs_and_its_rollouts_move(elastic: Any) -> None:
    pool, names, add = elastic
    old, new = await add(), await add()
    await pool.models()
    await until(lambda: sum(one.ready for one in pool.status()) == 2)
    rollouts = [pool.for_rollout() for _ in range(4)]
    await asyncio.gather(*(rollout.generate(REQUEST) for rollout in rollouts))
    on_old = [rollout for rollout in rollouts if rollout.url == old.url]
    assert len(on_old) == 2
    old.delay = 0.2
    running = asyncio.create_task(on_old[0].generate(REQUEST))
    await until(lambda: old.running == 1)
    names.servers.remove(old)
    await until(lambda: len(pool.status()) == 1)
    assert (await running).choices[0].token_ids == [7]
    before = len(old.requests)
    for rollout in on_old:
        await rollout.generate(REQUEST)
        assert rollout.url == new.url
    assert len(old.requests) == before


async def test_an_engine_that_leaves_by_dying_loses_no_request(elastic: Any) -> None:
    pool, names, add = elastic
    dying, other = await add(), await add()
    await pool.models()
    await until(lambda: sum(one.ready for one in pool.status()) == 2)
    dying.delay, other.delay = 60.0, 0.05  # what it holds, it never answers
    requests = [asyncio.create_task(pool.generate(REQUEST)) for _ in range(10)]
    await until(lambda: dying.running == 5)
    names.servers.remove(dying)
    await dying.stop()
    assert [answer.choices[0].token_ids for answer in await asyncio.gather(*requests)] == [[7]] * 10


async def test_a_resolver_that_fails_does_not_empty_the_pool(elastic: Any) -> None:
    pool, names, add = elastic
    await add()
    await pool.models()
    names.fails = True
    await asyncio.sleep(0.1)
    assert (await pool.generate(REQUEST)).choices[0].token_ids == [7]
    names.fails = False
    await add()
    await until(lambda: len(pool.status()) == 2)


async def test_engines_may_be_late(elastic: Any) -> None:
    pool, names, add = elastic
    names.fails = True
    asked = asyncio.create_task(pool.generate(REQUEST))
    await asyncio.sleep(0.05)
    names.fails = False
    server = await add()
    server.faults = [fake.unavailable]
    assert (await asked).choices[0].token_ids == [7]


async def test_without_an_engine_the_error_says_that_the_name_does_not_resolve() -> None:
    async def nothing(host: str, port: int) -> Sequence[str]:
        raise OSError("no such name")

    discovery = DnsDiscovery("engines.local:8000", interval=0.01, resolve=nothing)
    pool = EnginePool(discovery, PoolSettings(**QUICK | {"patience": 0.1}))
    try:
        with pytest.raises(EngineUnavailableError) as caught:
            await pool.generate(REQUEST)
        assert "'engines.local' does not resolve: no such name" in caught.value.where
    finally:
        await pool.close()


async def test_every_address_of_a_name_is_an_engine() -> None:
    asked: list[tuple[str, int]] = []

    async def resolve(host: str, port: int) -> Sequence[str]:
        asked.append((host, port))
        return ["10.0.0.2", "fd00::1", "10.0.0.2"]

    found = await DnsDiscovery("engines.default.svc:8000", resolve=resolve).addresses()
    assert found == ["http://10.0.0.2:8000", "http://[fd00::1]:8000"]
    assert asked == [("engines.default.svc", 8000)]
    assert await DnsDiscovery(
        "localhost:1", scheme="https", resolve=lambda *_: resolve_with_system("127.0.0.1", 1)
    ).addresses() == ["https://127.0.0.1:1"]


@pytest.mark.parametrize("name", ["engines", "engines:", ":8000", "engines:http"])
def test_a_name_without_a_port_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="no name of engines"):
        DnsDiscovery(name)
