"""Two trainer processes do what one does: losses, gradients, updates, checkpoints, published weights."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from prl_train.distributed import World
from prl_train.trainer import checkpoint

from .cases import close, gradients, make_trainer, same, steps, weights, whole_run
from .spawn import run_world


def _work(world: World, folder: Path) -> dict[str, Any]:
    """Run every case of two processes, in one world."""
    model = folder / "model"
    told: dict[str, Any] = {}
    plain = make_trainer(model, world)
    told["steps"] = steps(plain, 0, 2)
    told["weights"] = weights(plain)
    plain.save_checkpoint(folder / "of_two", {"batch": 2})
    told["onwards"] = steps(plain, 2, 3)
    plain.publish_weights(folder / "published", 1)
    told["gradients"] = gradients(make_trainer(model, world))
    told["one row"] = steps(make_trainer(model, world), 0, 1, count=1)
    told["offloaded"] = steps(make_trainer(model, world, parallel={"cpu_offload": True}), 0, 2)
    told["each row"] = steps(make_trainer(model, world, parallel={"reduce_every_row": True}), 0, 2)
    told["recomputed"] = steps(make_trainer(model, world, gradient_checkpointing=True), 0, 2)
    told["bfloat16"] = steps(make_trainer(model, world, dtype="bfloat16"), 0, 1)
    resumed = make_trainer(model, world)
    told["extra"] = resumed.load_checkpoint(folder / "of_one")
    told["resumed"] = steps(resumed, 2, 3)
    told["lora"] = _lora(model, world, folder)
    told["in background"] = _background(model, world, folder)
    return told


def _lora(model: Path, world: World | None, folder: Path) -> list[dict[str, float]]:
    trainer = make_trainer(model, world, lora={"rank": 4, "alpha": 8})
    done = steps(trainer, 0, 2)
    size = 1 if world is None else world.size
    trainer.save_checkpoint(folder / f"lora_of_{size}")
    trainer.publish_weights(folder / f"merged_of_{size}", 1)
    return done


def _background(model: Path, world: World, folder: Path) -> list[str]:
    trainer = make_trainer(model, world, checkpoint_async=True)
    steps(trainer, 0, 2)
    order: list[str] = []
    trained, write = threading.Event(), checkpoint.save
    # The disk is so slow that the next step is done before a byte is written.
    checkpoint.save = lambda *words, **options: trained.wait(60) and write(*words, **options)
    trainer.save_checkpoint(folder / "background", {"batch": 2}, then=lambda: order.append("whole"))
    steps(trainer, 2, 3)
    order.append("trained")
    trained.set()
    trainer.finish_checkpoint()
    checkpoint.save = write
    return order


@pytest.fixture(scope="module")
def folder(model_dir: Path) -> Path:
    """Return the folder of all cases, with a checkpoint of one process in it."""
    alone = make_trainer(model_dir)
    steps(alone, 0, 2)
    alone.save_checkpoint(model_dir.parent / "of_one", {"batch": 2})
    return model_dir.parent


@pytest.fixture(scope="module")
def two(folder: Path) -> list[dict[str, Any]]:
    """Return what each of the two processes told."""
    told = run_world(2, _work, folder)
    assert all(isinstance(one, dict) for one in told), told
    return told


@pytest.fixture(scope="module")
def alone(folder: Path, two: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the same of one process."""
    return {
        **whole_run(folder / "model"),
        "one row": steps(make_trainer(folder / "model"), 0, 1, count=1),
        "lora": _lora(folder / "model", None, folder),
    }


def test_losses_and_metrics_are_those_of_one_process(two: list[dict[str, Any]], alone: dict[str, Any]) -> None:
    """A mean of means, or a local denominator, would show in every number."""
    assert alone["steps"][0]["micro_batches"] % 2 == 1
    same(two[0]["steps"], alone["steps"])
    assert two[0]["steps"] == two[1]["steps"], "both processes tell the same"


def test_gradients_and_updates_are_those_of_one_process(two: list[dict[str, Any]], alone: dict[str, Any]) -> None:
    close(two[0]["gradients"], alone["gradients"], 1e-6)
    close(two[0]["weights"], alone["weights"], 2e-6)


def test_fewer_rows_than_processes_train_the_same(two: list[dict[str, Any]], alone: dict[str, Any]) -> None:
    same(two[0]["one row"], alone["one row"])


@pytest.mark.parametrize("how", ["offloaded", "each row", "recomputed"])
def test_where_weights_lie_and_when_gradients_meet_changes_no_number(
    two: list[dict[str, Any]], alone: dict[str, Any], how: str
) -> None:
    same(two[0][how], alone["steps"])


def test_bfloat16_passes_are_near(two: list[dict[str, Any]], alone: dict[str, Any]) -> None:
    assert two[0]["bfloat16"][0]["loss"] == pytest.approx(alone["steps"][0]["loss"], rel=0.1)


def test_a_run_of_one_goes_on_with_two(two: list[dict[str, Any]], alone: dict[str, Any]) -> None:
    assert two[0]["extra"] == {"batch": 2}
    same(two[0]["resumed"], alone["onwards"])


def test_a_run_of_two_goes_on_with_one(two: list[dict[str, Any]], alone: dict[str, Any], folder: Path) -> None:
    files = list((folder / "of_two" / "tensors").glob("*.distcp"))
    assert len(files) == 2, "each process writes its own part"
    trainer = make_trainer(folder / "model")
    assert trainer.load_checkpoint(folder / "of_two") == {"batch": 2}
    assert trainer.step_number == 2
    same(steps(trainer, 2, 3), alone["onwards"])


def test_a_checkpoint_written_beside_the_training_is_of_its_own_step(
    two: list[dict[str, Any]], alone: dict[str, Any], folder: Path
) -> None:
    """A write that read the live weights would hold a mixture of two steps."""
    assert [one["in background"] for one in two] == [["trained", "whole"], ["trained"]]
    trainer = make_trainer(folder / "model")
    assert trainer.load_checkpoint(folder / "background") == {"batch": 2}
    close(weights(trainer), alone["weights"], 2e-6)


def test_published_weights_are_whole(two: list[dict[str, Any]], folder: Path) -> None:
    published = load_file(folder / "published" / "version_000001" / "model.safetensors")
    assert "lm_head.weight" not in published
    marker = json.loads((folder / "published" / "version_000001" / "weights.json").read_text())
    assert marker["version"] == 1
    trainer = make_trainer(folder / "model")
    trainer.load_checkpoint(folder / "of_two")
    steps(trainer, 2, 3)
    mine = {name: value for name, value in weights(trainer).items() if name != "lm_head.weight"}
    close(published, mine, 2e-6)


def test_adapters_train_the_same(two: list[dict[str, Any]], alone: dict[str, Any], folder: Path) -> None:
    same(two[0]["lora"], alone["lora"])
    merged = [load_file(folder / f"merged_of_{n}" / "version_000001" / "model.safetensors") for n in (1, 2)]
    close(merged[0], merged[1], 2e-6)
    trainer = make_trainer(folder / "model", lora={"rank": 4, "alpha": 8})
    trainer.load_checkpoint(folder / "lora_of_2")
    assert trainer.step_number == 2
