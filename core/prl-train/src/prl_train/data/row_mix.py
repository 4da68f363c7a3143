"""Several stores as one data set, each with its share of an epoch."""

from __future__ import annotations

import hashlib
import math
import random
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from .row_stores import RowStore


class RowMix:
    """Rows of several stores under one numbering.

    A store's weight says how often an epoch has its rows: 1 each once, 2 each twice, 0.25 a quarter of them, another
    quarter in the next epoch. `most` bounds the rows that are used, from the first store on.
    """

    def __init__(
        self, stores: Sequence[RowStore], weights: Sequence[float] | None = None, most: int | None = None
    ) -> None:
        self._stores = list(stores)
        self._weights = list(weights or [1.0] * len(stores))
        self._ends = list(accumulate(len(store) for store in stores))
        self._used = min(self._ends[-1] if self._ends else 0, most if most is not None else 1 << 62)

    def __len__(self) -> int:
        return self._used

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        store, local = self._find(index)
        return store[local]

    def where(self, index: int) -> str:
        """Return how people find the row."""
        store, local = self._find(index)
        return store.where(local)

    def fingerprint(self) -> str:
        """Return what is equal for equal contents, weights and bound."""
        parts = [store.fingerprint() for store in self._stores] + [repr(self._weights), str(self._used)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def order(self, epoch: int, *, seed: int, shuffle: bool) -> list[int]:
        """Return the rows of one epoch, a pure function of its arguments."""
        order: list[int] = []
        start = 0
        for number, (end, weight) in enumerate(zip(self._ends, self._weights, strict=True)):
            rows = list(range(start, min(end, self._used)))
            order += _share(rows, weight, epoch, random.Random(f"{seed}/{number}/share"))
            start = end
        if shuffle:
            random.Random(f"{seed}/{epoch}").shuffle(order)
        return order

    def _find(self, index: int) -> tuple[RowStore, int]:
        number = bisect_right(self._ends, index)
        return self._stores[number], index - (self._ends[number - 1] if number else 0)


def _share(rows: list[int], weight: float, epoch: int, draw: random.Random) -> list[int]:
    """Return an epoch's rows of one store: a window of weight * len rows that moves on from epoch to epoch.

    Parts of a row add up over the epochs: of one row with the weight 0.25, every fourth epoch has it.
    """
    if weight == 1 or not rows:
        return rows
    draw.shuffle(rows)
    # Rounded first: 0.1 * 30 is a little more than 3.
    first, last = (math.ceil(round(weight * len(rows) * place, 6)) for place in (epoch, epoch + 1))
    return [rows[place % len(rows)] for place in range(first, last)]
