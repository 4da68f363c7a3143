"""Workers on a real local Ray: the same rollouts as anywhere, and none is lost with its worker."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from prl.contracts import RolloutExecutor, RolloutJob, WorkerSpec
from prl.plugin import ExecutorEntry, create, get_registry
from prl.types import ConfigError, EngineUnavailableError, Rollout

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.heavy
HERE = Path(__file__).parent


@pytest.fixture(scope="module", autouse=True)
def _cluster() -> Iterator[None]:
    """One Ray for all tests of the file, on the loopback address; starting one takes seconds."""
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    ray.init(
        address="local",
        num_cpus=3,
        include_dashboard=False,
        object_store_memory=128 << 20,
        _node_ip_address="127.0.0.1",
        runtime_env={"env_vars": {"PYTHONPATH": str(HERE)}},
        log_to_driver=False,
    )
    yield
    ray.shutdown()


@asynccontextmanager
async def running(spec: WorkerSpec, **options: Any) -> AsyncIterator[Any]:
    executor = create("executor", "ray", **options)
    assert isinstance(executor, RolloutExecutor)
    try:
        await executor.start(spec)
        yield executor
    finally:
        await executor.close()


def spec(**settings: Any) -> WorkerSpec:
    return WorkerSpec(target="arithmetic:create", settings={"seed": 7, **settings})


def job(group: int, member: int = 0) -> RolloutJob:
    return RolloutJob(group=group, member=member, cache_salt="3")


async def played_here(jobs: list[RolloutJob]) -> list[Rollout]:
    from arithmetic import create as make

    return [await make({"seed": 7}).play(one) for one in jobs]


async def test_workers_play_what_this_process_would(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))
    jobs = [job(group, member) for group in range(20) for member in range(3)]
    async with running(spec()) as executor:
        rollouts = await asyncio.gather(*(executor.play(one) for one in jobs))
        assert len({slot.pid for slot in executor.slots} - {os.getpid()}) == 2
    assert list(rollouts) == await played_here(jobs)


async def test_a_killed_worker_loses_no_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))
    jobs = [job(group) for group in range(12)]
    async with running(spec(waits=1.0)) as executor:
        tasks = [asyncio.create_task(executor.play(one)) for one in jobs]
        await asyncio.sleep(0.3)
        dead = executor.slots[0].pid
        os.kill(dead, signal.SIGKILL)
        rollouts = await asyncio.gather(*tasks)
        assert executor.slots[0].pid != dead
        assert [slot.lives for slot in executor.slots] == [2, 1]
        assert await executor.play(job(99)) == (await played_here([job(99)]))[0]
    assert list(rollouts) == await played_here(jobs)


async def test_a_rollout_that_kills_its_worker_each_time_ends_with_an_error_that_says_so() -> None:
    async with running(spec(dies=True), num_workers=1, max_replays=1) as executor:
        with pytest.raises(Exception, match=r"the rollout's worker died 2 times") as caught:
            await executor.play(job(4, 1))
        assert caught.value.where == "group 4, member 1"


async def test_errors_cross_in_their_three_parts() -> None:
    async with running(spec(breaks_at=1), num_workers=1) as executor:
        with pytest.raises(ConfigError, match="this task cannot be played") as caught:
            await executor.play(job(0, 1))
        assert (caught.value.where, caught.value.next_step) == ("member", "play another")
        assert (await executor.play(job(0, 2))).reward == 0.5, "an error in one rollout spares the worker"
    with pytest.raises(ConfigError, match="no engine"):
        async with running(spec(fails=True), num_workers=1):
            pass
    with pytest.raises(ConfigError, match="target cannot be imported"):
        async with running(WorkerSpec(target="nowhere:create"), num_workers=1):
            pass


async def test_cancelling_a_rollout_ends_it_in_the_worker() -> None:
    async with running(spec(waits=60), num_workers=1, rollouts_per_worker=1) as executor:
        task = asyncio.create_task(executor.play(job(0)))
        await asyncio.sleep(0.3)
        begin = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert executor.slots[0].busy == 0
        assert time.monotonic() - begin < 20


async def test_a_cluster_without_room_says_how_much_there_is() -> None:
    with pytest.raises(EngineUnavailableError, match="did not come up within 2 s") as caught:
        async with running(spec(), num_workers=1, cpus_per_worker=64, start_seconds=2):
            pass
    assert "of 3 CPUs free" in caught.value.where


def test_the_record_says_that_rollouts_leave_the_process() -> None:
    record = get_registry().find(ExecutorEntry, "ray")
    assert not record.in_process
    assert record.needs == ("ray",)
