"""The optimizer, its learning rate and the gradient clip, as one thing with a state."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from prl.types import ConfigError
from prl_train.distributed.sharding import whole
from prl_train.errors import TrainingError

from .config import OptimizerConfig


class Optimization:
    """AdamW over a model's parameters; `apply` clips, steps and advances the learning rate."""

    def __init__(self, model: nn.Module, config: OptimizerConfig) -> None:
        if config.schedule != "constant" and config.total_steps is None:
            raise ConfigError(
                f"schedule = {config.schedule!r} needs to know where it ends",
                where="total_steps",
                next_step="set total_steps, or use schedule = 'constant'",
            )
        self._config = config
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._decays = (config.weight_decay, 0.0)
        matrices, vectors = ([p for p in self._parameters if (p.ndim < 2) == is_vector] for is_vector in (False, True))
        self.optimizer = torch.optim.AdamW(
            [
                {"params": params, "weight_decay": decay}
                for params, decay in zip((matrices, vectors), self._decays, strict=True)
            ],
            lr=config.lr,
            betas=config.betas,
            eps=config.eps,
            fused=all(parameter.is_floating_point() for parameter in self._parameters),
        )
        self.steps = 0

    @property
    def lr(self) -> float:
        """The learning rate of the next step."""
        return self._config.lr * _factor(self._config, self.steps)

    def zero_grad(self) -> None:
        """Forget the gradients."""
        self.optimizer.zero_grad(set_to_none=True)

    def apply(self) -> dict[str, float]:
        """Clip and step; return `grad_norm` (before the clip) and `lr`.

        Raises `TrainingError` where the gradient is not finite, before any weight changes.
        """
        norm = nn.utils.clip_grad_norm_(self._parameters, self._config.max_grad_norm)
        grad_norm = float(whole(norm))
        if not math.isfinite(grad_norm):
            self.zero_grad()
            raise TrainingError(
                f"the gradient's norm is {grad_norm}; the weights were left as they are",
                where=f"optimizer step {self.steps + 1}",
                next_step="resume from the last checkpoint with a lower lr or a larger eps",
            )
        lr = self.lr
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        self.zero_grad()
        self.steps += 1
        return {"grad_norm": grad_norm, "lr": lr}

    def state(self) -> dict[str, Any]:
        """Return what the learning rate depends on; the moments are saved beside it."""
        return {"steps": self.steps}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from a saved state, with this run's settings: those of a checkpoint come along with the moments."""
        self.steps = int(state["steps"])
        for group, decay in zip(self.optimizer.param_groups, self._decays, strict=True):
            group.update(betas=self._config.betas, eps=self._config.eps, weight_decay=decay)


def _factor(config: OptimizerConfig, step: int) -> float:
    """Return the share of `lr` at a step, counted from 0."""
    if step < config.warmup_steps:
        return (step + 1) / config.warmup_steps
    if config.schedule == "constant" or config.total_steps is None:
        return 1.0
    span = max(config.total_steps - config.warmup_steps, 1)
    progress = min((step - config.warmup_steps) / span, 1.0)
    shape = 1.0 - progress if config.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
    return config.min_lr_ratio + (1.0 - config.min_lr_ratio) * shape
