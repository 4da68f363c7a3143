"""One batch on its way from the orchestrator to the trainer, and the progress that travels with it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from prl.types import TrainingSample

from .errors import RunError

FORMAT = 1
_NDARRAY = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where the orchestrator stands after a batch; enough to go on without losing or repeating a group.

    `next_group` is the first group never begun; `pending` are groups begun and not yet in a batch.
    `flat_batches` counts the last batches in a row without a learning signal, `first_reward` is the first batch's mean.
    """

    next_group: int = 0
    pending: list[int] = field(default_factory=list)
    flat_batches: int = 0
    first_reward: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBatch:
    """The samples of one step (possibly none, where no group had a learning signal) and the step's rollout metrics."""

    step: int
    samples: list[TrainingSample]
    metrics: dict[str, float]
    progress: Progress
    format: int = FORMAT


def _pack(value: Any) -> Any:
    array = np.asarray(value)
    if array.dtype == object:
        raise TypeError(f"{type(value).__name__} has no place in a batch file")
    body = msgspec.msgpack.encode((array.dtype.str, array.shape, np.ascontiguousarray(array).tobytes()))
    return msgspec.msgpack.Ext(_NDARRAY, body)


def _unpack(code: int, data: memoryview) -> Any:
    if code != _NDARRAY:
        raise ValueError(f"unknown extension {code}")
    dtype, shape, raw = msgspec.msgpack.decode(data)
    return np.frombuffer(raw, dtype=np.dtype(dtype)).reshape(shape)


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_pack)
_DECODER = msgspec.msgpack.Decoder(StepBatch, ext_hook=_unpack)


def encode_batch(batch: StepBatch) -> bytes:
    """Return the batch as msgpack; arrays (routed experts, pixels) travel as dtype, shape and bytes."""
    return _ENCODER.encode(batch)


def decode_batch(data: bytes, *, where: str = "") -> StepBatch:
    """Read `encode_batch`'s bytes; raise `RunError` where they are not a batch of this format."""
    try:
        batch = _DECODER.decode(data)
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
