"""An engine that is killed, hangs, or whose answers are spoilt on the way costs time, and nothing else."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from .proxy import FAULTS, FaultProxy
from .world import Child, World, engine, free_port, health

pytestmark = pytest.mark.heavy
STEPS = 9


def test_nothing_that_befalls_an_engine_or_its_answers_is_seen_in_what_is_trained(
    begin: Callable[..., World], site: Path, model: Path, tmp_path: Path
) -> None:
    port, log = free_port(), tmp_path / "engine.log"
    with FaultProxy(port) as proxy:
        world = begin(proxy.port, STEPS)
        trainer, orchestrator = world.start("trainer"), world.start("orchestrator")
        with engine(site, model, port, log) as first:
            world.wait_for(world.trained(0))
            proxy.faults = [*FAULTS, *FAULTS]
            world.wait_for(lambda: not proxy.faults)
            stop_for_a_while(world, first)
            busy_then_kill(world, first, port)
        with engine(site, model, port, log):
            codes = [orchestrator.wait(), trainer.wait()]
    assert codes == [0, 0], world.logs()
    world.check_whole()


def stop_for_a_while(world: World, child: Child) -> None:
    """Let the engine hang with its connections open, until it was given up, then let it go on."""
    child.send(signal.SIGSTOP)
    try:
        world.wait_for(lambda: "gets no work" in (world.root / "orchestrator.log").read_text())
        time.sleep(1.0)  # what waits for its answers is abandoned as well
    finally:
        child.send(signal.SIGCONT)


def busy_then_kill(world: World, child: Child, port: int) -> None:
    """Kill the engine while it samples with weights that it was not started with."""

    def is_sampling() -> bool:
        said = health(port)
        return said is not None and said["weight_version"] > 0 and said["running"] > 0

    world.wait_for(is_sampling, pause=0.0)
    child.kill()
