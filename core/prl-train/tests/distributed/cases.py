"""What the processes of a world do in these tests; each case is also run by one process alone, to compare."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from fixtures.samples import random_samples
from torch import Tensor

from prl.types import MicroBatch, TrainingSample
from prl_train.data import pack
from prl_train.distributed import World
from prl_train.distributed.sharding import whole
from prl_train.trainer import Trainer, TrainerConfig

USAGE = ("seconds", "tokens_per_second", "memory_gb")
MODEL = "model"


def samples(count: int, seed: int = 0) -> list[TrainingSample]:
    """Return random samples of mixed lengths with masks, advantages and log-probabilities."""
    return random_samples(
        count,
        seed,
        lambda chance, n: [chance.choice([0.7, 1.0])] * n,
        vocabulary=250,
        lengths=(1, 12),
        surprise=(4.0, 7.0),
    )


def rows(seed: int, count: int = 9) -> list[MicroBatch]:
    """Return an odd number of rows, so that two ranks cannot have the same number without a dummy."""
    packed = pack(samples(count, seed), 24)
    return packed if len(packed) % 2 else packed[:-1]


def make_trainer(model: Path, world: World | None = None, **settings: Any) -> Trainer:
    """Return a loaded trainer; keywords are settings."""
    defaults: dict[str, Any] = {"model": str(model), "lr": 1e-2, "warmup_steps": 0, "seq_len": 24, "eps": 1e-5}
    trainer = Trainer(TrainerConfig(**(defaults | settings)), world=world or World())
    trainer.load()
    return trainer


def steps(trainer: Trainer, first: int, last: int, count: int = 9) -> list[dict[str, float]]:
    """Train steps `first` to `last`; return their metrics but for times."""
    done = [trainer.step(rows(seed, count)) for seed in range(first, last)]
    return [{key: value for key, value in metrics.items() if key not in USAGE} for metrics in done]


def gradients(trainer: Trainer, seed: int = 0) -> dict[str, Tensor]:
    """Return the whole gradients of one step, as the optimizer sees them, without training on them."""
    seen: dict[str, Tensor] = {}
    optimization = trainer._loaded()

    def look(*_: Any) -> None:
        seen.update({name: whole(p.grad).clone() for name, p in trainer.model.named_parameters() if p.grad is not None})

    hook = optimization.optimizer.register_step_pre_hook(look)
    trainer.step(rows(seed))
    hook.remove()
    return seen


def whole_run(model: Path) -> dict[str, Any]:
    """Return what one process alone does: two steps, their weights, a third step, and the gradients of the first."""
    trainer = make_trainer(model)
    return {
        "steps": steps(trainer, 0, 2),
        "weights": weights(trainer),
        "onwards": steps(trainer, 2, 3),
        "gradients": gradients(make_trainer(model)),
    }


def weights(trainer: Trainer) -> dict[str, Tensor]:
    """Return all weights, whole."""
    return {name: whole(value).detach().clone() for name, value in trainer.model.state_dict().items()}


def same(mine: list[dict[str, float]], theirs: list[dict[str, float]], tolerance: float = 1e-5) -> None:
    """Compare the metrics of steps."""
    for one, other in zip(mine, theirs, strict=True):
        assert one == pytest.approx(other, rel=tolerance, abs=1e-6)


def close(mine: Mapping[str, Tensor], theirs: Mapping[str, Tensor], tolerance: float) -> None:
    """Compare tensors by name."""
    assert mine.keys() == theirs.keys()
    for name, value in mine.items():
        torch.testing.assert_close(value, theirs[name], rtol=0, atol=tolerance, msg=lambda text, n=name: f"{n}: {text}")
