"""Four processes: two groups that share rows, and two replicas of a divided model, equal one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from prl.types import ConfigError
from prl_train.distributed import Place, World

from .cases import close, gradients, make_trainer, same, steps, weights, whole_run
from .spawn import run_world


def _work(world: World, folder: Path) -> dict[str, Any]:
    """Run every case of four processes, in one world."""
    model = folder / "model"
    told: dict[str, Any] = {}
    pairs = World(world.place, context=2)
    for strategy in ("ring", "ulysses"):
        trainer = make_trainer(model, pairs, parallel={"context": 2, "context_strategy": strategy})
        told[strategy] = steps(trainer, 0, 2)
        told[f"{strategy} gradients"] = gradients(make_trainer(model, pairs, parallel={"context_strategy": strategy}))
        told[f"{strategy} weights"] = weights(trainer)
    told["loss over whole samples"] = _sequence_loss(model, pairs)
    told["replicas"] = steps(make_trainer(model, World(world.place, replicas=2)), 0, 2)
    resumed = make_trainer(model, world)
    resumed.load_checkpoint(folder / "of_two")
    told["resumed"] = steps(resumed, 2, 3)
    return told


def _sequence_loss(model: Path, world: World | None) -> list[dict[str, float]]:
    """Train with a loss that needs a sample's tokens together: a rank that saw half of them would be wrong."""
    return steps(make_trainer(model, world, loss={"name": "gspo"}), 0, 2)


def _two(world: World, folder: Path) -> None:
    trainer = make_trainer(folder / "model", world)
    steps(trainer, 0, 2)
    trainer.save_checkpoint(folder / "of_two")


@pytest.fixture(scope="module")
def folder(model_dir: Path) -> Path:
    return model_dir.parent


@pytest.fixture(scope="module")
def four(folder: Path) -> list[dict[str, Any]]:
    """Return what each of the four processes told; two others left them a checkpoint."""
    assert run_world(2, _two, folder) == [None, None]
    told = run_world(4, _work, folder)
    assert all(isinstance(one, dict) for one in told), told
    return told


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[str, Any]:
    model = folder / "model"
    return {**whole_run(model), "loss over whole samples": _sequence_loss(model, None)}


@pytest.mark.parametrize("strategy", ["ring", "ulysses"])
def test_processes_that_share_rows_do_what_one_does(
    four: list[dict[str, Any]], alone: dict[str, Any], strategy: str
) -> None:
    """Documents straddle the cut here: rows have several, of odd lengths."""
    same(four[0][strategy], alone["steps"])
    assert all(one[strategy] == four[0][strategy] for one in four)
    close(four[0][f"{strategy} gradients"], alone["gradients"], 1e-5)
    close(four[0][f"{strategy} weights"], alone["weights"], 1e-5)


def test_a_loss_over_whole_samples_sees_them_whole(four: list[dict[str, Any]], alone: dict[str, Any]) -> None:
    same(four[0]["loss over whole samples"], alone["loss over whole samples"])


def test_two_replicas_of_a_divided_model_are_one_model(four: list[dict[str, Any]], alone: dict[str, Any]) -> None:
    same(four[0]["replicas"], alone["steps"])


def test_a_run_of_two_goes_on_with_four(four: list[dict[str, Any]], alone: dict[str, Any]) -> None:
    same(four[0]["resumed"], alone["onwards"])


@pytest.mark.parametrize(("size", "replicas", "context"), [(4, 3, 1), (4, 1, 3), (4, 2, 4), (1, 1, 2)])
def test_processes_that_do_not_come_out_even_are_refused(size: int, replicas: int, context: int) -> None:
    with pytest.raises(ConfigError, match=f"{size} trainer processes cannot be divided"):
        World(Place(0, size), replicas=replicas, context=context)
