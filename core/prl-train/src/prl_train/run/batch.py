"""One batch on its way from the orchestrator to the trainer, and the progress that travels with it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from prl.types import TrainingSample

from .arrays import SharedArrays
from .errors import RunError

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where the orchestrator stands after a batch; enough to go on without losing or repeating a group.

    `next_group` is the first group never begun; `pending` are groups begun and not yet in a batch.
    `flat_batches` counts the last batches in a row without a learning signal, `first_reward` is the first batch's mean.
    `filters` is what filters remember of examples, by the filter's label.
    """

    next_group: int = 0
    pending: list[int] = field(default_factory=list)
    flat_batches: int = 0
    first_reward: float | None = None
    filters: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBatch:
    """The samples of one step (possibly none, where no group had a learning signal) and the step's rollout metrics."""

    step: int
    samples: list[TrainingSample]
    metrics: dict[str, float]
    progress: Progress
    format: int = FORMAT


def encode_batch(batch: StepBatch) -> bytes:
    """Return the batch as msgpack; arrays (routed experts, pixels) travel as dtype, shape and bytes, each once."""
    return msgspec.msgpack.encode(batch, enc_hook=SharedArrays().pack)


def decode_batch(data: bytes, *, where: str = "") -> StepBatch:
    """Read `encode_batch`'s bytes; raise `RunError` where they are not a batch of this format."""
    try:
        batch = msgspec.msgpack.decode(data, type=StepBatch, ext_hook=SharedArrays().unpack)
    except (msgspec.DecodeError, ValueError) as error:
        raise RunError(
            f"not a batch file: {error}",
            where=where,
            next_step="the file was changed or belongs to another version of prl-train; use a new run.directory",
        ) from error
    if batch.format != FORMAT:
        raise RunError(
            f"batch format {batch.format}, this prl-train reads {FORMAT}",
            where=where,
            next_step="install the same prl-train in every process of the run",
        )
    return batch
