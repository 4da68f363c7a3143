"""A disk that fills up stops the run with what to do; all that was whole stays so, and a resume goes on."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from prl_train.trainer.checkpoint import latest_checkpoint

from .world import Child, World

pytestmark = pytest.mark.heavy
STEPS = 7


def test_a_full_disk_stops_the_run_and_a_resume_goes_on(begin: Callable[..., World], engine_port: int) -> None:
    world = begin(engine_port, STEPS)
    trainer, orchestrator = world.start("trainer"), world.start("orchestrator")
    fill_up_at_a_checkpoint(world, trainer)
    assert orchestrator.wait() == 1
    assert "the trainer failed: step_000004 cannot be written" in orchestrator.text
    trainer, orchestrator = world.start("trainer"), world.start("orchestrator")
    fill_up_at_a_batch(world, orchestrator)
    assert trainer.wait() == 1
    assert "the orchestrator failed:" in trainer.text
    trainer, orchestrator = world.start("trainer"), world.start("orchestrator")
    assert [orchestrator.wait(), trainer.wait()] == [0, 0], world.logs()
    world.check_whole()


def fill_up_at_a_checkpoint(world: World, trainer: Child) -> None:
    """Let files grow large enough for weights, not for the optimizer's state beside them."""
    first = world.folder.checkpoints / "latest.json"
    world.wait_for(first.is_file)
    newest = world.folder.latest_weights()
    assert newest is not None
    size = max(path.stat().st_size for path in world.folder.weights.rglob("*.safetensors"))
    trainer.limit_files(size + 4096)
    assert trainer.wait() == 1, world.logs()
    told = trainer.text
    assert "step_000004 cannot be written: File too large" in told
    assert f"where: {world.folder.checkpoints / 'step_000004'}" in told
    assert "next:  free space" in told
    assert "Traceback" not in told
    whole = latest_checkpoint(world.folder.checkpoints)
    assert whole is not None
    assert whole.name == "step_000002"
    assert world.folder.latest_checkpoint() == (2, whole)


def fill_up_at_a_batch(world: World, orchestrator: Child) -> None:
    world.wait_for(world.trained(4))
    before = set(world.folder.batch_steps())
    orchestrator.limit_files(2048)
    assert orchestrator.wait() == 1, world.logs()
    told = orchestrator.text
    assert "cannot be written: File too large" in told
    assert "next:  free space" in told
    assert "Traceback" not in told
    assert set(world.folder.batch_steps()) - before <= {max(before) + 1}, "no half batch is handed over"
    assert json.loads((world.folder.status.directory / "orchestrator.json").read_text())["state"] == "failed"
