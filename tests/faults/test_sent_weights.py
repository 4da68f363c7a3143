"""Weights that go from process to process: every token is sampled by the right ones, whoever is killed meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from fixtures.forks import Forks
from fixtures.ports import free_port

from prl_train.distributed.local import loopback

from .world import World, engine

pytestmark = pytest.mark.heavy
STEPS = 7
SETTINGS = """
weight_transfer = "broadcast"
checkpoint_every = 3
[trainer.transfer]
seconds = 10.0
"""


def broadcasting(world: World) -> World:
    """Have the world's trainer send its weights; `[trainer]` is the last table of its configuration."""
    text = world.config.read_text(encoding="utf-8").replace("checkpoint_every = 2\n", "")
    world.config.write_text(text + SETTINGS, encoding="utf-8")
    return world


def written(world: World) -> list[int]:
    return sorted(int(path.name.removeprefix("version_")) for path in world.folder.weights.glob("version_*"))


def place(rank: int, size: int, port: int) -> dict[str, str]:
    """Return what a launcher tells a trainer's process."""
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return {name: str(value) for name, value in names.items()} | {"GLOO_SOCKET_IFNAME": loopback()}


def test_every_step_samples_with_the_weights_of_the_last_though_few_are_written(
    begin: Callable[..., World], engine_port: int
) -> None:
    """Two processes of the trainer, the orchestrator, and an engine that a run before has used."""
    world = broadcasting(begin(engine_port, 4))
    text = world.config.read_text(encoding="utf-8")
    world.config.write_text(text.replace("checkpoint_every = 3\n", ""), encoding="utf-8")
    trainers = [world.start("trainer", **place(rank, 2, port)) for port in (free_port(),) for rank in range(2)]
    orchestrator = world.start("orchestrator")
    assert [child.wait() for child in (orchestrator, *trainers)] == [0, 0, 0], world.logs()
    world.check_whole()
    assert written(world) == [0, 4], "the versions between were sent"
    assert not (world.folder.transfer / "trainer/offer.json").exists()


def test_engine_trainer_and_orchestrator_are_killed_and_nothing_is_lost(
    begin: Callable[..., World], forks: Forks, site: Path, model: Path, tmp_path: Path
) -> None:
    """A new engine finds weights that only ever were in processes; a new trainer sends again what engines lack."""
    port = free_port()
    log = tmp_path / "engine.log"
    world = broadcasting(begin(port, STEPS))
    with engine(forks, site, model, port, log) as first:
        trainer, orchestrator = world.start("trainer"), world.start("orchestrator")
        world.wait_for(world.trained(1))
        first.kill()
    with engine(forks, site, model, port, log):
        world.wait_for(world.trained(4))
        trainer.kill()
        orchestrator.kill()
        trainer, orchestrator = world.start("trainer"), world.start("orchestrator")
        assert [orchestrator.wait(), trainer.wait()] == [0, 0], world.logs()
    world.check_whole()
    assert STEPS in written(world)
