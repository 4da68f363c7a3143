"""From packed rows to what a loss reads: counts of a step, checks of its streams, the inputs of a row."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import compress, pairwise
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
    """Raise `TrainingError` where a row with targets lacks a stream that the loss reads, or has a bad value in one."""
    for batch in batches:
        if not any(batch.loss_mask):
            continue
        missing = [name for name in sorted(loss.streams) if getattr(batch, name) is None]
        if missing:
            raise TrainingError(
                f"the loss reads {', '.join(missing)}, which a row of the batch does not have",
                where="trainer.loss",
                next_step="; ".join(OPTIONAL_STREAMS[name] for name in missing),
            )
        for name in ("advantages", "temperatures", *sorted(loss.streams)):
            _check_values(name, getattr(batch, name), batch.loss_mask)


def _check_values(name: str, stream: Sequence[float], mask: Sequence[bool]) -> None:
    """Raise `TrainingError` unless all values at targets are finite, and temperatures not below 0.

    One such value makes the loss of the whole step one that is no number, and nothing would tell where it came from.
    """
    lowest = 0.0 if name == "temperatures" else -math.inf
    if math.isfinite(sum(compress(stream, mask))) and min(compress(stream, mask)) >= lowest:
        return
    bad = (i for i, wanted in enumerate(mask) if wanted and not (math.isfinite(stream[i]) and stream[i] >= lowest))
    place = next(bad, None)
    if place is not None:  # else finite values of an infinite sum
        raise TrainingError(
            f"{name} is {stream[place]} at a target",
            where=f"token {place} of a packed row",
            next_step="find the rollout that brought it: an engine or a reward gave what is no usable number",
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
