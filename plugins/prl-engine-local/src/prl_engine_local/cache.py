"""A preallocated key/value cache whose rows are the running sequences.

Position p of a sequence lives at index p of its row, so rows of different lengths need no shifting: a mask by position
hides what lies beyond. Running rows are kept at the front, so that a step reads a view instead of gathering. The cache
that transformers grows by concatenation spends most of a small model's decode time copying; this one writes in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import Cache

LENGTH_STEP = 64


class BatchCache(Cache):
    """Keys and values per layer, [rows, heads, length, head size]; reallocated only when too small.

    Call `select` before each forward pass: it names the rows and the position of their new tokens.
    """

    def __init__(self) -> None:
        super().__init__(layers=[])
        self._keys: dict[int, torch.Tensor] = {}
        self._values: dict[int, torch.Tensor] = {}
        self._rows = 0
        self._length = 0
        self._start = 0
        self._count = 0
        self._visible = 0
        self._offset: int | torch.Tensor = 0

    def reserve(self, rows: int, length: int) -> None:
        """Make room for the first `rows` rows of `length` tokens, which keep what they hold.

        Rows and positions beyond those may be dropped: many short rows and one long row never add up.
        """
        if rows <= self._rows and length <= self._length:
            return
        self._rows = rows + rows // 4
        self._length = -(-length // LENGTH_STEP) * LENGTH_STEP
        for store in (self._keys, self._values):
            for layer, old in store.items():
                store[layer] = _resized(old, self._rows, self._length)

    def select(self, start: int, count: int, offset: int | torch.Tensor, visible: int) -> None:
        """Aim the next forward pass at rows `start .. start + count`.

        `offset` is where the new tokens go: one position for all rows (a block of prompt tokens), or a tensor [count]
        (one token a row). `visible` is how many positions attention reads.
        """
        self._start, self._count, self._offset, self._visible = start, count, offset, visible

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the new keys and values [count, heads, new, head size]; return what attention reads."""
        keys = self._write(self._keys, layer_idx, key_states)
        values = self._write(self._values, layer_idx, value_states)
        return keys, values

    def _write(self, store: dict[int, torch.Tensor], layer: int, new: torch.Tensor) -> torch.Tensor:
        if layer not in store:
            store[layer] = new.new_zeros((self._rows, new.shape[1], self._length, new.shape[3]))
        rows = store[layer][self._start : self._start + self._count]
        if isinstance(self._offset, int):
            rows[:, :, self._offset : self._offset + new.shape[2]] = new
        else:
            rows[torch.arange(self._count, device=new.device), :, self._offset] = new[:, :, 0]
        return rows[:, :, : self._visible]

    def copy_row(self, source: int, targets: Sequence[int], length: int) -> None:
        """Copy the first `length` positions of one row to others."""
        if not targets or not length:
            return
        for store in (self._keys, self._values):
            for tensor in store.values():
                tensor[list(targets), :, :length] = tensor[source, :, :length]

    def move_rows(self, sources: Sequence[int], targets: Sequence[int], length: int) -> None:
        """Move whole rows, `length` positions each, so that the running ones stay at the front."""
        if not sources:
            return
        for store in (self._keys, self._values):
            for tensor in store.values():
                tensor[list(targets), :, :length] = tensor[list(sources), :, :length]

    def release(self) -> None:
        """Free the memory."""
        self._keys.clear()
        self._values.clear()
        self._rows = self._length = 0

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the position of the first new token (rows differ: models are always given explicit positions)."""
        return self._offset if isinstance(self._offset, int) else self._visible - 1

    def get_mask_sizes(self, *args: Any, **kwargs: Any) -> tuple[int, int]:
        """Return how many positions attention reads, and from where."""
        return self._visible, 0


def _resized(old: torch.Tensor, rows: int, length: int) -> torch.Tensor:
    new = old.new_zeros((rows, old.shape[1], length, old.shape[3]))
    kept_rows, kept = min(rows, old.shape[0]), min(length, old.shape[2])
    new[:kept_rows, :, :kept] = old[:kept_rows, :, :kept]
    return new
