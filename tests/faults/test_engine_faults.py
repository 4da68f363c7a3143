"""An engine that is killed, hangs, or whose answers are spoilt on the way costs time, and nothing else."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fixtures.forks import Forks
from fixtures.ports import free_port

from .proxy import FAULTS, Fault, FaultProxy, fine
from .world import Child, World, engine

pytestmark = pytest.mark.heavy
STEPS = 9


def test_nothing_that_befalls_an_engine_or_its_answers_is_seen_in_what_is_trained(
    begin: Callable[..., World], forks: Forks, site: Path, model: Path, tmp_path: Path
) -> None:
    port, log = free_port(), tmp_path / "engine.log"
    with FaultProxy(port) as proxy:
        world = begin(proxy.port, STEPS)
        trainer, orchestrator = world.start("trainer"), world.start("orchestrator")
        with engine(forks, site, model, port, log) as first:
            world.wait_for(world.trained(0))
            told: list[int] = []
            # One after the other, each at an answer: whatever the machine does, the run is not over before.
            proxy.faults = [*FAULTS, *FAULTS, stopping(world, first, told), *[fine] * 30, killing(first)]
            go_on_once_given_up(world, first, told)
            world.wait_for(lambda: first.poll() is not None)
        with engine(forks, site, model, port, log):
            codes = [orchestrator.wait(), trainer.wait()]
    assert codes == [0, 0], world.logs()
    assert proxy.faults == []
    world.check_whole()


def stopping(world: World, child: Child, told: list[int]) -> Fault:
    """Let the engine hang with its connections open; note how much the orchestrator had told until then."""

    async def stop(writer: asyncio.StreamWriter, body: bytes) -> None:
        child.send(signal.SIGSTOP)
        told.append(len(log_of(world)))
        await fine(writer, body)

    return stop


def killing(child: Child) -> Fault:
    """Kill the engine while it samples for others, with weights that it was not started with."""

    async def kill(writer: asyncio.StreamWriter, body: bytes) -> None:
        child.may_fail = True
        child.send(signal.SIGKILL)
        await fine(writer, body)

    return kill


def log_of(world: World) -> str:
    return (world.root / "orchestrator.log").read_text()


def go_on_once_given_up(world: World, child: Child, told: list[int]) -> None:
    world.wait_for(lambda: bool(told) and "gets no work" in log_of(world)[told[0] :])
    time.sleep(1.0)  # what waits for its answers is abandoned as well
    child.send(signal.SIGCONT)
