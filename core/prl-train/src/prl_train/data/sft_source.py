"""Samples in the order of the epochs, built here or ahead in worker processes."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from prl.types import ConfigError
from prl_train.errors import DataError

from .sft_rows import SftSample

AHEAD = 256
"""Rows that workers may be ahead of the packer."""
CHUNK = 16
"""Rows of one piece of work: large enough that sending it costs little, small enough to begin soon."""

Built = list[SftSample] | DataError
"""A row's samples, or why it has none."""


class RowBuilder(Protocol):
    """Builds rows by number."""

    def __call__(self, index: int) -> Built:
        """Return the samples of a row, or the error that it has none."""
        ...

    def expect(self, indices: Sequence[int]) -> None:
        """Take note of the rows that will be asked for next."""
        ...

    def close(self) -> None:
        """Release what the builder holds."""
        ...


class LocalBuilder:
    """Builds each row when it is asked for."""

    def __init__(self, build: Callable[[int], Built]) -> None:
        self._build = build

    def __call__(self, index: int) -> Built:
        """Build the row."""
        return self._build(index)

    def expect(self, indices: Sequence[int]) -> None:
        """Do nothing ahead."""

    def close(self) -> None:
        """Hold nothing."""


class PooledBuilder:
    """Builds rows ahead, on several cores. `make` is called once in each worker; it must be picklable."""

    def __init__(self, make: Callable[[], Callable[[int], Built]], workers: int) -> None:
        # Not by fork: the parent has threads of torch and of the tokenizer.
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_begin_worker, initargs=(make,))
        self._begun: dict[int, list[tuple[Future[list[Built]], int]]] = {}

    def __call__(self, index: int) -> Built:
        """Wait for the row; begin it where nobody expected it."""
        if not self._begun.get(index):
            self._submit([index])
        future, place = self._begun[index].pop(0)
        if not self._begun[index]:
            del self._begun[index]
        return future.result()[place]

    def expect(self, indices: Sequence[int]) -> None:
        """Begin the rows that were not begun; a row that stands there twice is built twice."""
        begun = Counter({index: len(futures) for index, futures in self._begun.items()})
        missing: list[int] = []
        for index in indices:
            if begun[index] > 0:
                begun[index] -= 1
            else:
                missing.append(index)
        for start in range(0, len(missing), CHUNK):
            self._submit(missing[start : start + CHUNK])

    def _submit(self, chunk: list[int]) -> None:
        future = self._pool.submit(_build_in_worker, chunk)
        for place, index in enumerate(chunk):
            self._begun.setdefault(index, []).append((future, place))

    def close(self) -> None:
        """End the workers; rows that were begun and not asked for are dropped."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._begun.clear()


_worker: dict[str, Callable[[int], Built]] = {}


def _begin_worker(make: Callable[[], Callable[[int], Built]]) -> None:
    _worker["build"] = make()


def _build_in_worker(indices: list[int]) -> list[Built]:
    return [_worker["build"](index) for index in indices]


class SampleSource(Protocol):
    """An iterator over rows' samples whose place can be saved; an empty list stands for a row without a usable one."""

    def __len__(self) -> int:
        """Return how many rows the data set has."""
        ...

    def __next__(self) -> list[SftSample]:
        """Return the samples of the next row, or raise `StopIteration` at the end."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the place as JSON data."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to a saved place."""
        ...


@dataclass(slots=True)
class _Place:
    epoch: int = 0
    row: int = 0


class IndexedSource:
    """Rows by number, in each epoch's own order; `epochs=None` never ends.

    `order(epoch)` returns the rows of an epoch; `on_error` decides about a row without samples: it raises, or the row
    is passed over.
    """

    def __init__(
        self,
        count: int,
        build: RowBuilder,
        *,
        order: Callable[[int], list[int]],
        epochs: int | None = 1,
        on_error: Callable[[DataError], None] | None = None,
    ) -> None:
        if count < 1:
            raise ConfigError(
                "the data set has no rows", where="data", next_step="give a data file with at least one row"
            )
        self._count = count
        self._build = build
        self._order_of = order
        self._epochs = epochs
        self._on_error = on_error or _raise
        self._place = _Place()
        self._order = order(0)
        self._expected = 0
        self._settle()

    def __len__(self) -> int:
        return self._count

    def __next__(self) -> list[SftSample]:
        if self._epochs is not None and self._place.epoch >= self._epochs:
            raise StopIteration
        self._look_ahead()
        index = self._order[self._place.row]
        self._place.row += 1
        self._settle()
        built = self._build(index)
        if isinstance(built, DataError):
            self._on_error(built)
            return []
        return built

    def _settle(self) -> None:
        """Go on to the next epoch that has rows where this one has none left: small shares leave some without any."""
        while self._place.row >= len(self._order):
            self._go_to(_Place(self._place.epoch + 1))
            if self._epochs is not None and self._place.epoch >= self._epochs:
                return

    def _go_to(self, place: _Place) -> None:
        self._place = place
        self._order = self._order_of(place.epoch)
        self._expected = place.row

    def _look_ahead(self) -> None:
        if self._place.row + AHEAD // 2 >= self._expected < len(self._order):
            self._expected = min(self._place.row + AHEAD, len(self._order))
            self._build.expect(self._order[self._place.row : self._expected])

    def state_dict(self) -> dict[str, Any]:
        """Return epoch and place."""
        return {"count": self._count, "epoch": self._place.epoch, "place": self._place.row}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to a saved place; raise `ConfigError` where the data set has another number of rows."""
        if state["count"] != self._count:
            raise ConfigError(
                f"the checkpoint was made with {state['count']} rows, the data set has {self._count}",
                where="data",
                next_step="resume with the same data file, or start a new run",
            )
        self._go_to(_Place(state["epoch"], state["place"]))
        self._settle()  # another version may have drawn more rows in that epoch


def _raise(error: DataError) -> None:
    raise error
