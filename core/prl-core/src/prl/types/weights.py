"""Weights on their way from a trainer to engines: what is sent, in which order of bytes, and who receives it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

ALIGNMENT = 16
"""Tensors begin at multiples of this many bytes, so that a bucket can be viewed in any type."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor: its name in the checkpoint, torch's name of its type ("bfloat16"), its shape and size (bytes)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size: int


@dataclass(frozen=True, slots=True)
class Piece:
    """`length` bytes of tensor number `tensor` from its byte `start` on; they lie at `offset` of the bucket."""

    tensor: int
    start: int
    offset: int
    length: int

    @property
    def end(self) -> int:
        """Where the piece ends in its bucket."""
        return self.offset + self.length


@dataclass(frozen=True)
class WeightManifest:
    """All tensors of a model, in the order in which they are sent."""

    tensors: tuple[TensorSpec, ...]

    @cached_property
    def digest(self) -> str:
        """The sha256 of names, types, shapes and order: sender and receiver must mean the same."""
        rows = [[spec.name, spec.dtype, list(spec.shape), spec.size] for spec in self.tensors]
        return hashlib.sha256(json.dumps(rows).encode()).hexdigest()

    @property
    def size(self) -> int:
        """Bytes of all tensors."""
        return sum(spec.size for spec in self.tensors)

    def buckets(self, bucket_bytes: int) -> Iterator[list[Piece]]:
        """Cut the tensors, laid end to end, into buckets of at most `bucket_bytes`; a large one spans several."""
        limit = max(ALIGNMENT, bucket_bytes // ALIGNMENT * ALIGNMENT)
        pieces: list[Piece] = []
        offset = 0
        for number, spec in enumerate(self.tensors):
            start = 0
            while start < spec.size:
                if offset >= limit:
                    yield pieces
                    pieces, offset = [], 0
                length = min(spec.size - start, limit - offset)
                pieces.append(Piece(number, start, offset, length))
                start += length
                offset = -(-(offset + length) // ALIGNMENT) * ALIGNMENT
        if pieces:
            yield pieces


@dataclass(frozen=True, slots=True)
class Seats:
    """The processes of an engine that would receive weights.

    `devices` names the device of each, "cpu" or a GPU's unique id. `identity` is another one whenever the processes
    are: a group that was made with them is then of no use.
    """

    devices: tuple[str, ...]
    identity: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightTransfer:
    """One transfer of version `version`, as receivers are told of it.

    `address` ("host:port") is the sender's store. `group` names the process group of `world` processes: the sender is
    rank 0, receivers take the other ranks in the order in which they come, and whoever has that group already keeps it.
    The sender sets the store's key `offer` when it begins. `seconds` bounds every single wait.
    """

    version: int
    digest: str
    address: str
    offer: str
    group: str
    world: int
    backend: str
    bucket_bytes: int
    seconds: float
