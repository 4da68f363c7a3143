"""The trainer: load, step, save, publish."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from prl.types import MicroBatch
from prl_train.algo import LossSums, cross_entropy_loss, policy_loss
from prl_train.attention.binding import IMPLEMENTATION, BoundKernel, resolve_kernel
from prl_train.errors import TrainingError
from prl_train.models.load import load_model, source_directory

from .checkpoint import read_checkpoint, write_checkpoint
from .config import OptimizerConfig, TrainerConfig
from .forward import Targets, forward_targets
from .optimization import Optimization
from .weights import write_weights

LossOf = Callable[[Targets, MicroBatch, float, LossSums], Tensor]


class Trainer:
    """Train one model on one device; call `load` first. Not thread-safe: one call at a time."""

    def __init__(self, config: TrainerConfig, *, kernel: BoundKernel | None = None) -> None:
        """Keep the settings; `kernel` replaces the attention plugin that the settings name."""
        self.config = config
        self.step_number = 0
        self._given_kernel = kernel
        self._model: Any = None
        self._optimization: Optimization | None = None
        self._device = torch.device(config.device)
        self._dtype: torch.dtype = getattr(torch, config.dtype)

    def load(self) -> None:
        """Load the model and the attention kernel; raise `ConfigError` where either cannot be had."""
        if self.config.threads is not None:
            torch.set_num_threads(self.config.threads)
        torch.manual_seed(self.config.seed)
        self._kernel = self._given_kernel or resolve_kernel(
            self.config.attention, device=self._device.type, dtype=self.config.dtype
        )
        # Master weights stay in float32: small updates would be lost in bfloat16.
        self._model = load_model(self.config.model, torch.float32, self._device, attention=IMPLEMENTATION)
        self._model.train()
        if self.config.gradient_checkpointing:
            self._model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        self._optimization = Optimization(self._model, self.config)

    @property
    def model(self) -> Any:
        """The transformers model; raises `TrainingError` before `load`."""
        self._loaded()
        return self._model

    def step(self, micro_batches: Sequence[MicroBatch]) -> dict[str, float]:
        """Do one optimizer step with the policy loss; return its metrics.

        `loss`, `grad_norm`, `lr`, `entropy` (nats), `mismatch_kl`, `max_logprob_diff`, `dropped_share`, `tokens`,
        `loss_tokens`, `samples`, `seconds`. Raises `TrainingError` where no token is a target or the gradient is not
        finite; the weights are then unchanged.
        """
        sums = LossSums()
        metrics = self._step(micro_batches, self._policy_loss, self._loaded(), sums)
        self.step_number += 1
        return metrics | sums.metrics() | {"step": float(self.step_number)}

    def sft_step(
        self, micro_batches: Sequence[MicroBatch], *, optimization: Optimization | None = None
    ) -> dict[str, float]:
        """Do one optimizer step with cross-entropy; `optimization` replaces the trainer's own (a warm-up has its own).

        Metrics as `step`, without those that compare with an engine.
        """
        metrics = self._step(micro_batches, _supervised_loss, optimization or self._loaded(), LossSums())
        if optimization is None:
            self.step_number += 1
        return metrics | {"step": float(self.step_number)}

    def new_optimization(self, config: OptimizerConfig) -> Optimization:
        """Return a fresh optimizer over the model's weights, for a phase with its own learning rate."""
        return Optimization(self.model, config)

    @torch.no_grad()
    def score(self, batch: MicroBatch) -> list[float]:
        """Return the log-probability of every token of a row under the current weights, 0.0 where it is no target."""
        targets = self._forward(batch)
        scores = torch.zeros(len(batch.input_ids), device=self._device)
        scores[targets.positions] = targets.logprobs
        return [float(value) for value in scores.tolist()]

    def save_checkpoint(self, directory: str | Path, extra: dict[str, Any] | None = None) -> Path:
        """Write model, optimizer, learning-rate place, random state, step and `extra` (JSON data), whole or not."""
        state = {"step": self.step_number, "optimization": self._loaded().state(), "extra": extra or {}}
        return write_checkpoint(Path(directory), self._model, self._loaded().optimizer, state)

    def load_checkpoint(self, directory: str | Path) -> dict[str, Any]:
        """Go on from a checkpoint and return `extra`; raise `CheckpointError` where it is not whole or does not fit."""
        optimization = self._loaded()
        state = read_checkpoint(Path(directory), self._model, optimization.optimizer)
        optimization.load_state(state["optimization"])
        self.step_number = int(state["step"])
        extra: dict[str, Any] = state["extra"]
        return extra

    def publish_weights(self, directory: str | Path, version: int) -> Path:
        """Write `directory/version_N`, a model directory any engine can load; it appears only when whole."""
        self._loaded()
        return write_weights(
            Path(directory), self._model, version, dtype=self._dtype, source=source_directory(self.config.model)
        )

    def _loaded(self) -> Optimization:
        if self._optimization is None:
            raise TrainingError("the trainer has no model yet", where="Trainer", next_step="call Trainer.load() first")
        return self._optimization

    def _forward(self, batch: MicroBatch) -> Targets:
        autocast = None if self._dtype == torch.float32 else self._dtype
        return forward_targets(self.model, batch, self._kernel, device=self._device, autocast=autocast)

    def _step(
        self, micro_batches: Sequence[MicroBatch], loss_of: LossOf, optimization: Optimization, sums: LossSums
    ) -> dict[str, float]:
        started = time.perf_counter()
        self.model.train()
        count = sum(sum(batch.loss_mask) for batch in micro_batches)
        if count == 0:
            raise TrainingError(
                "no token of the batch is a training target",
                where=f"step {self.step_number + 1}, {len(micro_batches)} micro-batches",
                next_step="check the rollouts' masks and errors; skip batches whose rewards are all equal",
            )
        optimization.zero_grad()
        loss = entropy = 0.0
        for batch in micro_batches:
            if not any(batch.loss_mask):
                continue
            targets = self._forward(batch)
            part = loss_of(targets, batch, float(count), sums)
            part.backward()  # type: ignore[no-untyped-call]
            loss += float(part.detach())
            entropy += float(targets.entropy.sum())
        self._check_finite(loss, optimization)
        return {
            "loss": loss,
            "entropy": entropy / count,
            "tokens": float(sum(len(batch.input_ids) for batch in micro_batches)),
            "loss_tokens": float(count),
            "samples": float(sum(len(batch.cu_seqlens) - 1 for batch in micro_batches)),
            "micro_batches": float(len(micro_batches)),
            **optimization.apply(),
            "seconds": time.perf_counter() - started,
        }

    def _check_finite(self, loss: float, optimization: Optimization) -> None:
        if math.isfinite(loss):
            return
        optimization.zero_grad()
        raise TrainingError(
            f"the loss is {loss}; the weights were left as they are",
            where=f"step {self.step_number + 1}",
            next_step="resume from the last checkpoint with a lower lr; see max_logprob_diff of the steps before",
        )

    def _policy_loss(self, targets: Targets, batch: MicroBatch, count: float, sums: LossSums) -> Tensor:
        def pick(values: Sequence[float]) -> Tensor:
            return torch.tensor(values, dtype=targets.logprobs.dtype, device=self._device)[targets.positions]

        loss, part = policy_loss(
            targets.logprobs,
            pick(batch.inference_logprobs),
            pick(batch.advantages),
            torch.ones_like(targets.positions, dtype=torch.bool),
            denominator=count,
            config=self.config.loss,
            teacher_logprobs=self._teacher(batch, pick),
        )
        sums.add(part)
        return loss

    def _teacher(self, batch: MicroBatch, pick: Callable[[Sequence[float]], Tensor]) -> Tensor | None:
        if batch.teacher_logprobs is not None:
            return pick(batch.teacher_logprobs)
        if self.config.loss.teacher_weight == 0:
            return None
        raise TrainingError(
            "teacher_weight is set, but a row has no teacher log-probabilities",
            where="trainer.loss.teacher_weight",
            next_step="configure a teacher engine, or set teacher_weight = 0",
        )


def _supervised_loss(targets: Targets, batch: MicroBatch, count: float, sums: LossSums) -> Tensor:
    mask = torch.ones_like(targets.positions, dtype=torch.bool)
    return cross_entropy_loss(targets.logprobs, mask, count)
