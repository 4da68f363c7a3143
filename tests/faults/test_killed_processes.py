"""Orchestrator and trainer may be killed at any moment; started again, they go on as if nothing had happened."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable

import pytest
from fixtures.environments import ROOT

from prl_train.run.metrics import read_metrics

from .world import World

pytestmark = pytest.mark.heavy
STEPS = 8


def test_no_batch_is_lost_or_trained_twice_whoever_is_killed(begin: Callable[..., World], engine_port: int) -> None:
    world = begin(engine_port, STEPS)
    draw = random.Random(7)
    trainer, orchestrator = world.start("trainer"), world.start("orchestrator")
    for step in (0, 1):
        world.wait_for(world.trained(step))
        time.sleep(draw.uniform(0, 0.3))
        orchestrator.kill()
        orchestrator = world.start("orchestrator")
    published = world.folder.weights / "version_000004"
    world.wait_for(published.is_dir, pause=0.0)
    trainer.kill()  # the weights are out, their checkpoint is not, or not whole
    trainer = world.start("trainer")
    world.wait_for(world.trained(4))
    time.sleep(draw.uniform(0, 0.3))
    trainer.kill()
    orchestrator.kill()
    leave_what_a_kill_leaves(world)
    trainer, orchestrator = world.start("trainer"), world.start("orchestrator")
    assert [orchestrator.wait(), trainer.wait()] == [0, 0], world.logs()
    world.check_whole()
    measured = {name for row in read_metrics(world.folder.metrics) for name in row}
    assert documented_metrics() <= measured, "the page tells users to watch what is not there"


def documented_metrics() -> set[str]:
    """Return the metrics that the page on long runs says to watch."""
    page = (ROOT / "docs" / "how-to" / "run-for-a-week.md").read_text(encoding="utf-8")
    table = page[page.index("| metric | healthy") : page.index("A watcher needs nothing")]
    return set(re.findall(r"^\| `([^`]+)`", table, re.MULTILINE))


def leave_what_a_kill_leaves(world: World) -> None:
    """Put there what a process killed while it wrote leaves behind, which no timing of a test hits for sure."""
    (world.folder.batches / ".batch_000006.msgpack.77.abcd.tmp").write_bytes(b"half")
    (world.folder.weights / ".version_000009.x1y2").mkdir()
    aside = world.folder.checkpoints / ".step_000006.old.z3"
    (aside / "step_000006").mkdir(parents=True)
