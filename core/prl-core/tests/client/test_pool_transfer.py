"""Engines of a pool receive weights together; who misses them gets no work until it has them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from prl.client import EnginePool, FixedAddresses, HttpEngineClient, PoolSettings
from prl.client.pool import HttpConnect
from prl.contracts import WeightReceiver, WeightRouter
from prl.types import (
    EngineError,
    EngineUnavailableError,
    GenerateRequest,
    TensorSpec,
    WeightManifest,
    WeightTransfer,
    WeightTransferError,
)

from . import fake_engines as fake
from .fake_engines import FakeServer

MANIFEST = WeightManifest((TensorSpec("a", "float32", (2, 3), 24),))
REQUEST = GenerateRequest(model="m", prompt_token_ids=[1, 2])
QUICK: dict[str, Any] = {"backoff": 0.005, "patience": 5.0, "health_interval": 0.03}
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Taker(FakeServer):
    """An engine with the two routes; `instead` answers a transfer in place of the usual."""

    def __init__(self) -> None:
        super().__init__()
        self.offers: list[Any] = []
        self.transfers: list[Any] = []
        self.seats = 2
        self.instead: Answer | None = None

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m", "max_model_len": 100, "weight_version": self.version}]})

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        routes = {"/v1/weights/offer": self._offer, "/v1/weights/receive": self._receive}
        return await routes.get(request.path, super()._generate)(request)

    async def _offer(self, request: web.Request) -> web.StreamResponse:
        self.offers.append(await request.json())
        if self.seats == 0:
            return fake.error(400, "bad_weights", "the model has no 'a'")
        return web.json_response({"devices": ["cpu"] * self.seats, "identity": f"process {self.port}"})

    async def _receive(self, request: web.Request) -> web.StreamResponse:
        self.transfers.append(await request.json())
        if self.instead is not None:
            return await self.instead(request)
        self.version = self.transfers[-1]["version"]
        return web.json_response({"status": "ok", "weight_version": self.version})


async def failed(request: web.Request) -> web.StreamResponse:
    return fake.error(409, "transfer_failed", "the transfer broke off")


def transfer(version: int, seconds: float = 0.2) -> WeightTransfer:
    return WeightTransfer(
        version=version, digest=MANIFEST.digest, address="127.0.0.1:1", offer="o", group="g", world=5, backend="gloo",
        bucket_bytes=64, seconds=seconds,
    )  # fmt: skip


@pytest.fixture
async def engines() -> AsyncIterator[list[Taker]]:
    made = [Taker(), Taker()]
    for engine in made:
        await engine.start()
    yield made
    for engine in made:
        await engine.stop()


@pytest.fixture
async def pool(engines: list[Taker]) -> AsyncIterator[EnginePool]:
    """A pool whose engines both hold version 1."""
    made = EnginePool(
        FixedAddresses([engine.url for engine in engines]), PoolSettings(**QUICK), connect=HttpConnect(timeout=2.0)
    )
    await made.load_weights("/w/1", 1)
    await until(lambda: all_hold(made, 1))
    yield made
    await made.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.005)


def all_hold(pool: EnginePool, version: int) -> bool:
    return all(one.ready and one.weight_version == version for one in pool.status())


async def one_misses(pool: EnginePool, engines: list[Taker]) -> None:
    """Send version 2, which the second engine does not receive."""
    engines[1].instead = failed
    await pool.offer_weights(MANIFEST)
    await pool.receive_weights(transfer(2))
    await until(pool.wants_directory)


async def test_a_pool_and_a_client_are_receivers_to_whoever_looks(pool: EnginePool) -> None:
    client = HttpEngineClient("http://127.0.0.1:1")
    assert isinstance(pool, WeightRouter)
    assert isinstance(client, WeightReceiver)
    assert not isinstance(client, WeightRouter)


async def test_seats_of_all_engines_are_one_offer_and_all_receive(pool: EnginePool, engines: list[Taker]) -> None:
    seats = await pool.offer_weights(MANIFEST)
    assert seats.devices == ("cpu",) * 4
    assert (await pool.offer_weights(MANIFEST)).identity == seats.identity
    tensor = {"name": "a", "dtype": "float32", "shape": [2, 3], "size": 24}
    assert [engine.offers for engine in engines] == [[{"tensors": [tensor]}] * 2] * 2
    await pool.receive_weights(transfer(2))
    assert [engine.transfers[0]["version"] for engine in engines] == [2, 2]
    assert engines[0].transfers[0]["group"] == "g"
    assert all_hold(pool, 2)
    assert not pool.wants_directory()
    assert (await pool.generate(REQUEST)).weight_version == 2


async def test_other_processes_are_another_identity(pool: EnginePool, engines: list[Taker]) -> None:
    """A group in which a process of before sits would wait for it."""
    both = await pool.offer_weights(MANIFEST)
    engines[1].seats = 0
    one = await pool.offer_weights(MANIFEST)
    assert one.devices == ("cpu", "cpu")
    assert one.identity != both.identity


async def test_an_engine_that_did_not_receive_gets_no_work_until_a_directory_comes(
    pool: EnginePool, engines: list[Taker]
) -> None:
    await one_misses(pool, engines)
    assert [one.ready for one in pool.status()] == [True, False]
    assert pool.status()[1].problem == "it waits for a directory of the current weights"
    assert {(await pool.generate(REQUEST)).weight_version for _ in range(8)} == {2}
    loads = [list(engine.loads) for engine in engines]
    await pool.load_weights("/w/2", 2)
    await until(lambda: all_hold(pool, 2))
    assert [engine.loads for engine in engines] == [loads[0], [*loads[1], 2]], "who received it need not load it again"
    assert not pool.wants_directory()


async def test_one_that_waits_for_a_directory_can_receive_the_next_version(
    pool: EnginePool, engines: list[Taker]
) -> None:
    await one_misses(pool, engines)
    engines[1].instead = None
    assert (await pool.offer_weights(MANIFEST)).devices == ("cpu",) * 4
    await pool.receive_weights(transfer(3))
    await until(lambda: all_hold(pool, 3))
    assert not pool.wants_directory()


async def test_where_nobody_received_all_go_on_with_the_weights_from_before(
    pool: EnginePool, engines: list[Taker]
) -> None:
    for engine in engines:
        engine.instead = failed
    await pool.offer_weights(MANIFEST)
    with pytest.raises(WeightTransferError, match="no engine received weights 2: the transfer broke off"):
        await pool.receive_weights(transfer(2))
    assert all_hold(pool, 1)
    assert not pool.wants_directory()
    assert (await pool.generate(REQUEST)).weight_version == 1


async def test_an_engine_that_began_anew_waits_for_a_directory(pool: EnginePool, engines: list[Taker]) -> None:
    """It holds the weights that it was started with, and the version that others have lies nowhere."""
    await pool.offer_weights(MANIFEST)
    await pool.receive_weights(transfer(2))
    await engines[0].stop()
    await until(lambda: not pool.status()[0].ready)
    await engines[0].start()
    await until(pool.wants_directory)
    assert {(await pool.generate(REQUEST)).weight_version for _ in range(4)} == {2}
    await pool.load_weights("/w/2", 2)
    await until(lambda: all_hold(pool, 2))
    assert engines[0].loads == [1, 2]


async def test_an_engine_that_hangs_holds_the_others_up_for_the_time_limit_alone(
    pool: EnginePool, engines: list[Taker]
) -> None:
    engines[1].instead = fake.hang
    await pool.offer_weights(MANIFEST)
    receiving = asyncio.create_task(pool.receive_weights(transfer(2, seconds=0.1)))
    await until(lambda: bool(engines[1].transfers))
    engines[1].healthy = False
    async with asyncio.timeout(30):
        await receiving
    assert pool.status()[0].weight_version == 2
    engines[1].healthy, engines[1].instead = True, None
    await until(pool.wants_directory)


async def test_where_no_engine_is_up_or_takes_the_offer_that_is_said_at_once(
    pool: EnginePool, engines: list[Taker]
) -> None:
    for engine in engines:
        engine.seats = 0
    with pytest.raises(EngineError, match="the model has no 'a'"):
        await pool.offer_weights(MANIFEST)
    for engine in engines:
        await engine.stop()
    await until(lambda: not any(one.ready for one in pool.status()))
    with pytest.raises(EngineUnavailableError, match="no engine of the pool"):
        async with asyncio.timeout(4):  # less than the pool's patience
            await pool.offer_weights(MANIFEST)
