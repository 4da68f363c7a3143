"""From packed rows to what a loss reads: counts of a step, checks of its streams, the inputs of a row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import torch

from prl.contracts import Loss, LossInputs
from prl.contracts.loss import LossUnit
from prl.types import MicroBatch
from prl_train.errors import TrainingError

if TYPE_CHECKING:
    from prl_train.trainer.forward import Targets

OPTIONAL_STREAMS = {
    "inference_logprobs": "nobody sampled some of the tokens: choose a loss that does not compare with the sampler, "
    "such as trainer.loss.name = 'cross-entropy'",
    "teacher_logprobs": "configure a teacher engine that scores the samples, or choose another loss or weight",
}
"""Stream of a micro-batch that may be missing -> what to do where a loss reads it."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What a step trains on; add them up over ranks before the first backward pass."""

    tokens: int
    sequences: int

    def of(self, unit: LossUnit) -> float:
        """Return the denominator of a loss that counts in this unit."""
        return float(self.tokens if unit == "tokens" else self.sequences)


def count_targets(batches: Iterable[MicroBatch]) -> Counts:
    """Count the targets of the rows, and the samples that have at least one."""
    tokens = sequences = 0
    for batch in batches:
        tokens += sum(batch.loss_mask)
        sequences += sum(any(batch.loss_mask[start:end]) for start, end in pairwise(batch.cu_seqlens))
    return Counts(tokens, sequences)


def check_streams(loss: Loss, batches: Iterable[MicroBatch]) -> None:
    """Raise `TrainingError` where a row with targets lacks a stream that the loss reads."""
    for batch in batches:
        missing = [name for name in sorted(loss.streams) if getattr(batch, name) is None]
        if missing and any(batch.loss_mask):
            raise TrainingError(
                f"the loss reads {', '.join(missing)}, which a row of the batch does not have",
                where="trainer.loss",
                next_step="; ".join(OPTIONAL_STREAMS[name] for name in missing),
            )


def loss_inputs(targets: Targets, batch: MicroBatch) -> LossInputs:
    """Return what a loss reads of one row: its streams at its targets; a row without targets has them all, empty."""
    positions, device = targets.positions, targets.positions.device

    def pick(values: Sequence[float] | None) -> torch.Tensor | None:
        if not len(positions):
            return targets.logprobs.detach()
        if values is None:
            return None
        return torch.tensor(values, dtype=targets.logprobs.dtype, device=device)[positions]

    ends = torch.tensor(batch.cu_seqlens[1:], device=device)
    sequences = torch.bucketize(positions, ends, right=True)
    counts = torch.zeros(len(ends), dtype=torch.long, device=device)
    counts.index_add_(0, sequences, torch.ones_like(sequences))
    return LossInputs(
        logprobs=targets.logprobs,
        entropy=targets.entropy,
        advantages=pick(batch.advantages),
        sequences=sequences,
        sequence_targets=counts,
        inference_logprobs=pick(batch.inference_logprobs),
        teacher_logprobs=pick(batch.teacher_logprobs),
    )
