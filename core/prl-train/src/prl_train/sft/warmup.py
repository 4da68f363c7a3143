"""A short supervised phase before reinforcement learning, with an optimizer of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice

from prl_train.data import SupervisedSample, pack_supervised_batch
from prl_train.errors import TrainingError
from prl_train.trainer.config import OptimizerConfig
from prl_train.trainer.trainer import Trainer

_RISE_SHARE = 0.1


def warm_up(
    trainer: Trainer,
    samples_iter: Iterable[SupervisedSample],
    steps: int,
    batch_size: int,
    *,
    lr: float | None = None,
    on_step: Callable[[int, dict[str, float]], None] | None = None,
) -> dict[str, float]:
    """Train `steps` batches of `batch_size` samples with cross-entropy; return the last step's metrics.

    The learning rate rises over the first tenth and falls to a tenth of `lr` (default: the trainer's own). The
    trainer's optimizer and step count stay untouched, so that what follows starts fresh. Raises `TrainingError` where
    samples run out.
    """
    if steps == 0:
        return {}
    settings = trainer.config
    optimization = trainer.new_optimization(
        OptimizerConfig(
            lr=lr or settings.lr,
            betas=settings.betas,
            weight_decay=settings.weight_decay,
            max_grad_norm=settings.max_grad_norm,
            warmup_steps=max(int(steps * _RISE_SHARE), 1),
            schedule="cosine",
            total_steps=steps,
            min_lr_ratio=0.1,
        )
    )
    samples = iter(samples_iter)
    metrics: dict[str, float] = {}
    for step in range(steps):
        batch = list(islice(samples, batch_size))
        if len(batch) < batch_size:
            raise TrainingError(
                f"the warm-up ran out of samples at step {step + 1} of {steps}",
                where="warm_up",
                next_step="give an endless iterator of demonstrations, or fewer steps",
            )
        metrics = trainer.sft_step(pack_supervised_batch(batch, settings.seq_len), optimization=optimization)
        if on_step is not None:
            on_step(step, metrics)
    return metrics
