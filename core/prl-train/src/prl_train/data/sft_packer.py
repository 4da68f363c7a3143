"""Greedy packing of a stream of supervised samples, with a state that loses and repeats nothing."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from prl.types import ConfigError, MicroBatch
from prl_train.errors import DataError

from .packing import pack_supervised
from .sft_rows import SftSample


class SampleSource(Protocol):
    """An iterator of samples whose place can be saved; `None` stands for a row without a usable sample."""

    def __len__(self) -> int:
        """Return how many rows one epoch has."""
        ...

    def __next__(self) -> SftSample | None:
        """Return the next sample, or raise `StopIteration` at the end."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the place as JSON data."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to a saved place."""
        ...


class IndexedSource:
    """Samples by index, shuffled anew each epoch from one seed; `epochs=None` never ends."""

    def __init__(
        self,
        count: int,
        build: Callable[[int], SftSample | None],
        *,
        seed: int = 0,
        shuffle: bool = True,
        epochs: int | None = 1,
    ) -> None:
        if count < 1:
            raise ConfigError(
                "the data set has no rows", where="data", next_step="give a data file with at least one row"
            )
        self._count = count
        self._build = build
        self._seed = seed
        self._shuffle = shuffle
        self._epochs = epochs
        self._epoch = 0
        self._place = 0
        self._order = self._order_of(0)

    def __len__(self) -> int:
        return self._count

    def __next__(self) -> SftSample | None:
        if self._place == self._count:
            self._epoch, self._place = self._epoch + 1, 0
            self._order = self._order_of(self._epoch)
        if self._epochs is not None and self._epoch >= self._epochs:
            self._epoch, self._place = self._epochs - 1, self._count  # stay at the end, however often it is asked
            raise StopIteration
        index = self._order[self._place]
        self._place += 1
        return self._build(index)

    def _order_of(self, epoch: int) -> list[int]:
        order = list(range(self._count))
        if self._shuffle:
            random.Random(f"{self._seed}/{epoch}").shuffle(order)
        return order

    def state_dict(self) -> dict[str, Any]:
        """Return epoch and place."""
        return {"count": self._count, "epoch": self._epoch, "place": self._place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to a saved place; raise `ConfigError` where the data set has another number of rows."""
        if state["count"] != self._count:
            raise ConfigError(
                f"the checkpoint was made with {state['count']} rows, the data set has {self._count}",
                where="data",
                next_step="resume with the same data file, or start a new run",
            )
        self._epoch, self._place = state["epoch"], state["place"]
        self._order = self._order_of(self._epoch)


class SftPacker:
    """Join samples in order into rows of at most `seq_len` tokens.

    The sample that did not fit the last row is part of the state: a resumed packer begins with it. Samples longer than
    `seq_len` are cut; those left without a target are dropped; both are counted.
    """

    def __init__(self, source: SampleSource, seq_len: int, *, pad_to: int | None = None, pad_token_id: int = 0) -> None:
        self._source = source
        self._seq_len = seq_len
        self._pad_to = pad_to
        self._pad_token_id = pad_token_id
        self._pending: SftSample | None = None
        self.truncated = 0
        self.dropped = 0

    def __iter__(self) -> Iterator[MicroBatch]:
        return self

    def __next__(self) -> MicroBatch:
        return pack_supervised(self.next_samples(), pad_to=self._pad_to, pad_token_id=self._pad_token_id)

    def next_samples(self) -> list[SftSample]:
        """Return the samples of the next row; raise `StopIteration` when none are left."""
        row: list[SftSample] = []
        used = 0
        while True:
            sample = self._take()
            if sample is None:
                if row:
                    return row
                raise StopIteration
            if used + len(sample) > self._seq_len:
                self._pending = sample
                return row
            row.append(sample)
            used += len(sample)

    def _take(self) -> SftSample | None:
        if self._pending is not None:
            sample, self._pending = self._pending, None
            return sample
        for _ in range(len(self._source) + 1):
            try:
                drawn = self._source.__next__()
            except StopIteration:
                return None
            fitted = self._fit(drawn) if drawn is not None else None
            if fitted is not None:
                return fitted
            self.dropped += 1
        raise DataError(
            f"no row of the data set has a target within seq_len = {self._seq_len}",
            where=f"{len(self._source)} rows, one after the other",
            next_step="raise seq_len, or check the rows' assistant turns and the `roles` to train",
        )

    def _fit(self, sample: SftSample) -> SftSample | None:
        is_long = len(sample) > self._seq_len
        cut = sample
        if is_long:
            cut = SftSample(sample.token_ids[: self._seq_len], sample.loss_mask[: self._seq_len], sample.index)
        if not any(cut.loss_mask[1:]):
            return None
        self.truncated += is_long
        return cut

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to go on: the source's place, the pending sample and the counters."""
        pending = self._pending
        return {
            "source": self._source.state_dict(),
            "pending": None if pending is None else [pending.token_ids, pending.loss_mask, pending.index],
            "truncated": self.truncated,
            "dropped": self.dropped,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self._source.load_state_dict(state["source"])
        pending = state["pending"]
        self._pending = None if pending is None else SftSample(*pending)
        self.truncated, self.dropped = state["truncated"], state["dropped"]
