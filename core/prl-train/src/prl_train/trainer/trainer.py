"""The trainer: load, step, save, publish."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from prl.contracts import Loss
from prl.types import ConfigError, MicroBatch
from prl_train.algo import LossSums, check_streams, count_targets, loss_inputs, resolve_loss
from prl_train.algo.options import CrossEntropyOptions
from prl_train.algo.plain import CrossEntropyLoss
from prl_train.algo.streams import Counts
from prl_train.attention.binding import IMPLEMENTATION, BoundKernel, resolve_kernel
from prl_train.attention.context_parallel import RowPlan
from prl_train.data.apart import take_apart
from prl_train.data.balance import balance
from prl_train.distributed.sharding import add_gradients_up, passes_without_backward
from prl_train.distributed.world import World, current_world
from prl_train.errors import TrainingError
from prl_train.models.load import source_directory
from prl_train.models.replay import RouterReplay

from .checkpoint import CheckpointWriter, read_checkpoint
from .config import OptimizerConfig, TrainerConfig
from .documents import check_layers, keeps_documents_apart
from .forward import Targets, forward_targets, prepare_head
from .head import FusedHead
from .logprob import Tiles
from .optimization import Optimization
from .prepare import prepare_model, share_rows
from .usage import Usage
from .weights import Outgoing, outgoing_tensors, write_adapter, write_weights

LOG = logging.getLogger("prl.trainer")


class Trainer:
    """Train one model, on one device or on those of a world's processes; call `load` first.

    In a world of several processes each has a trainer of its own and makes the same calls with the same arguments: the
    trainers divide the rows of a step among themselves. Not thread-safe: one call at a time.
    """

    def __init__(self, config: TrainerConfig, *, kernel: BoundKernel | None = None, world: World | None = None) -> None:
        """Keep the settings; `kernel` replaces the attention plugin that they name, `world` the one that was joined."""
        self.config = config
        self.step_number = 0
        self.world = world or current_world()
        self._given_kernel = kernel
        self._model: Any = None
        self._optimization: Optimization | None = None
        self._device = self.world.device(config.device)
        self._dtype: torch.dtype = getattr(torch, config.dtype)
        self._writer = CheckpointWriter(self.world, in_background=config.checkpoint_async)

    def load(self) -> None:
        """Load the model and the attention kernel; raise `ConfigError` where either cannot be had."""
        if self.config.threads is not None:
            torch.set_num_threads(self.config.threads)
        torch.manual_seed(self.config.seed)
        self._model = prepare_model(self.config, self.world, self._device, attention=IMPLEMENTATION)
        check_layers(self._model.config)
        self._kernel = self._given_kernel or resolve_kernel(
            self.config.attention, device=self._device.type, dtype=self.config.dtype, model=self._model
        )
        self._context = share_rows(self._model, self._kernel, self.world, self.config.parallel.context_strategy)
        self._loss = resolve_loss(self.config.loss)
        self._model.eval()
        with torch.no_grad(), passes_without_backward(self._model):
            self._head = self._find_head()
            self._is_packable = self._find_packable()
        self._replay = RouterReplay.install(self._model) if self.config.router_replay else None
        settings = self.config.model_dump(include=set(OptimizerConfig.model_fields))
        self.world.check_same(settings, "the settings of the optimizer")
        self._optimization = Optimization(self._model, self.config)
        # Dropout must differ between processes, which all made the same model from the same seed.
        torch.manual_seed(self.config.seed + self.world.rank)

    @property
    def model(self) -> Any:
        """The transformers model; raises `TrainingError` before `load`."""
        self._loaded()
        return self._model

    def step(self, micro_batches: Sequence[MicroBatch]) -> dict[str, float]:
        """Do one optimizer step with the configured loss; return its metrics.

        `loss`, `grad_norm`, `lr`, `entropy` (nats), `tokens`, `loss_tokens`, `samples`, `seconds` and the loss's own
        (`mismatch_kl`, `max_logprob_diff`, `dropped_share` and the like). Raises `TrainingError` where no token is a
        target, the loss reads a stream that a row lacks, or the gradient is not finite; the weights are then unchanged.
        """
        metrics = self._step(micro_batches, self._loss, self._loaded())
        self.step_number += 1
        return metrics | {"step": float(self.step_number)}

    def sft_step(
        self, micro_batches: Sequence[MicroBatch], *, optimization: Optimization | None = None
    ) -> dict[str, float]:
        """Do one optimizer step with cross-entropy; `optimization` replaces the trainer's own (a warm-up has its own).

        Metrics as `step`, without those that compare with an engine.
        """
        supervised = CrossEntropyLoss(CrossEntropyOptions())
        metrics = self._step(micro_batches, supervised, optimization or self._loaded())
        if optimization is None:
            self.step_number += 1
        return metrics | {"step": float(self.step_number)}

    def new_optimization(self, config: OptimizerConfig) -> Optimization:
        """Return a fresh optimizer over the model's weights, for a phase with its own learning rate."""
        return Optimization(self.model, config)

    @torch.no_grad()
    def score(self, batch: MicroBatch) -> list[float]:
        """Return the log-probability of every token of a row under the current weights, 0.0 where it is no target."""
        self.model.eval()
        scores = torch.zeros(len(batch.input_ids), device=self._device)
        start = 0
        with passes_without_backward(self.model):
            for row in self.rows_of([batch]):
                targets = self._forward(row)
                scores[start + targets.positions] = targets.logprobs
                start += len(row.input_ids)
        return [float(value) for value in scores.tolist()]

    def rows_of(self, micro_batches: Sequence[MicroBatch]) -> list[MicroBatch]:
        """Return the rows as the model can take them: of one sample each, where it would let samples see each other."""
        self._loaded()
        if self._is_packable:
            return list(micro_batches)
        return [row for batch in micro_batches for row in take_apart(batch)]

    def save_checkpoint(
        self, directory: str | Path, extra: dict[str, Any] | None = None, *, then: Callable[[], None] | None = None
    ) -> Path:
        """Write model, optimizer, learning-rate place, random state, step and `extra` (JSON data), whole or not.

        `then` is called in the main process when it is whole: with `checkpoint_async` that is later, at the latest in
        `finish_checkpoint`. Without `then` the checkpoint is whole on return.
        """
        state = {"step": self.step_number, "optimization": self._loaded().state(), "extra": extra or {}}
        self._writer.write(Path(directory), self._model, self._loaded().optimizer, state, then)
        return Path(directory)

    def finish_checkpoint(self) -> None:
        """Wait for a checkpoint that is still being written; raise what made it fail."""
        self._writer.finish()

    def load_checkpoint(self, directory: str | Path) -> dict[str, Any]:
        """Go on from a checkpoint and return `extra`; raise `CheckpointError` where it is not whole or does not fit."""
        optimization = self._loaded()
        self.finish_checkpoint()
        state = read_checkpoint(Path(directory), self._model, optimization.optimizer, self.world)
        optimization.load_state(state["optimization"])
        self.step_number = int(state["step"])
        extra: dict[str, Any] = state["extra"]
        return extra

    def publish_weights(self, directory: str | Path, version: int) -> Path:
        """Write `directory/version_N`, a model directory any engine can load; it appears only when whole.

        With `lora.publish = "adapter"` it is a directory of adapters, for engines that add them to the model they have.
        """
        self._loaded()
        if self.config.lora is not None and self.config.lora.publish == "adapter":
            return write_adapter(Path(directory), self._model, version, dtype=self._dtype, world=self.world)
        return write_weights(
            Path(directory),
            self._model,
            version,
            dtype=self._dtype,
            source=source_directory(self.config.model),
            world=self.world,
            file_bytes=int(self.config.weights_file_gb * 1e9),
        )

    def outgoing_weights(self) -> list[Outgoing]:
        """Return the tensors that `publish_weights` writes, in order, not yet gathered; alike in every process."""
        return list(outgoing_tensors(self.model, self._dtype))

    def _loaded(self) -> Optimization:
        if self._optimization is None:
            raise TrainingError("the trainer has no model yet", where="Trainer", next_step="call Trainer.load() first")
        return self._optimization

    @property
    def _autocast(self) -> torch.dtype | None:
        return None if self._dtype == torch.float32 else self._dtype

    def _forward(self, batch: MicroBatch) -> Targets:
        return forward_targets(
            self.model,
            batch,
            self._kernel,
            device=self._device,
            autocast=self._autocast,
            head=self._head,
            replay=self._replay,
            plan=self._plan(batch),
        )

    def _plan(self, batch: MicroBatch) -> RowPlan | None:
        """Return how the row is cut, where several processes share it."""
        if self._context is None:
            return None
        return self._context.plan(batch.cu_seqlens, len(batch.input_ids), self._device)

    def _find_head(self) -> FusedHead | None:
        if not self.config.logprob_chunk:
            return None
        tiles = Tiles(self.config.logprob_chunk, self.config.logprob_vocabulary_chunk)
        return prepare_head(self._model, self._kernel, self._device, tiles, autocast=self._autocast)

    def _find_packable(self) -> bool:
        """Find out whether samples may share a row; raise `ConfigError` where what follows from it cannot be had."""

        def logprobs_of(row: MicroBatch) -> Tensor:
            targets = forward_targets(
                self._model, row, self._kernel, device=self._device, autocast=self._autocast, head=self._head
            )
            return targets.logprobs

        if keeps_documents_apart(self._model.config, logprobs_of, self._dtype):
            return True
        if self._context is not None:
            raise ConfigError(
                "the model carries a state from token to token, which processes that share a row do not pass on",
                where="trainer.parallel.context",
                next_step="train this model with trainer.parallel.context = 1",
            )
        LOG.warning("the model carries a state from one sample of a row to the next: each gets a row of its own")
        return False

    def _step(self, micro_batches: Sequence[MicroBatch], loss_of: Loss, optimization: Optimization) -> dict[str, float]:
        usage = Usage(self._device)
        self.model.train()
        counts = self._count(micro_batches, loss_of)
        optimization.zero_grad()
        rows = self._share(micro_batches)
        totals, sums = torch.zeros(2, dtype=torch.float64, device=self._device), LossSums()
        for number, batch in enumerate(rows, start=1):
            is_last = number == len(rows) or self.config.parallel.reduce_every_row
            add_gradients_up(self._model, now=is_last)
            targets = self._forward(batch)
            part = loss_of(loss_inputs(targets, batch), counts.of(loss_of.unit))
            # Processes average their gradients; what is wanted is the sum.
            (part.loss * self.world.size).backward()
            totals += torch.stack([part.loss.detach(), targets.entropy.sum()])
            sums.add(part)
        loss, entropy = self.world.add_up(totals.tolist())
        sums.reduce(self._reduce)
        self._check_finite(loss, optimization)
        tokens = sum(len(batch.input_ids) for batch in micro_batches)
        return {
            "loss": loss,
            "entropy": entropy / counts.tokens,
            "tokens": float(tokens),
            "loss_tokens": float(counts.tokens),
            "samples": float(sum(len(batch.cu_seqlens) - 1 for batch in micro_batches)),
            "micro_batches": float(len(micro_batches)),
            **sums.metrics(),
            **optimization.apply(),
            **usage.metrics(tokens),
        }

    def _count(self, micro_batches: Sequence[MicroBatch], loss_of: Loss) -> Counts:
        """Count the targets of the whole step, in every process: no share of the rows changes what a target weighs."""
        check_streams(loss_of, micro_batches)
        counts = count_targets(micro_batches)
        if counts.tokens == 0:
            raise TrainingError(
                "no token of the batch is a training target",
                where=f"step {self.step_number + 1}, {len(micro_batches)} micro-batches",
                next_step="check the rollouts' masks and errors; skip batches whose rewards are all equal",
            )
        self.world.check_same((self.step_number, counts.tokens, counts.sequences), "step, targets and samples")
        return counts

    def _share(self, micro_batches: Sequence[MicroBatch]) -> list[MicroBatch]:
        """Return this process's rows, as many as every other's; one without targets would change nothing."""
        rows = [row for row in self.rows_of(micro_batches) if any(row.loss_mask)]
        if self.world.data_size == 1:
            return rows
        return balance(rows, self.world.data_size)[self.world.data_rank]

    def _reduce(self, values: Tensor, how: Literal["sum", "max"]) -> Tensor:
        together = self.world.add_up if how == "sum" else self.world.largest
        flat = together([float(value) for value in values.flatten().tolist()])
        return torch.tensor(flat, dtype=values.dtype, device=values.device).view_as(values)

    def _check_finite(self, loss: float, optimization: Optimization) -> None:
        if math.isfinite(loss):
            return
        optimization.zero_grad()
        raise TrainingError(
            f"the loss is {loss}; the weights were left as they are",
            where=f"step {self.step_number + 1}",
            next_step="resume from the last checkpoint with a lower lr; see max_logprob_diff of the steps before",
        )
