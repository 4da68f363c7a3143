"""Greedy packing of a stream of supervised samples, with a state that loses and repeats nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Literal

from prl.types import MicroBatch
from prl_train.errors import DataError

from .packing import pack_supervised
from .sft_rows import SftSample
from .sft_source import SampleSource

TooLong = Literal["truncate", "drop", "error"]


class SftPacker:
    """Join samples in order into rows of at most `seq_len` tokens.

    Samples drawn and not yet in a row are part of the state: a resumed packer begins with them. Samples longer than
    `seq_len` are cut, or what `too_long` says; those left without a target are dropped; both are counted.
    """

    def __init__(
        self,
        source: SampleSource,
        seq_len: int,
        *,
        too_long: TooLong = "truncate",
        pad_to: int | None = None,
        pad_token_id: int = 0,
    ) -> None:
        self._source = source
        self._seq_len = seq_len
        self._too_long = too_long
        self._pad_to = pad_to
        self._pad_token_id = pad_token_id
        self._pending: list[SftSample] = []
        self.truncated = 0
        self.dropped = 0
        self.notes: Counter[str] = Counter()

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
                self._pending.insert(0, sample)
                return row
            row.append(sample)
            used += len(sample)

    def _take(self) -> SftSample | None:
        for _ in range(len(self._source) + 1):
            if self._pending:
                return self._pending.pop(0)
            try:
                drawn = self._source.__next__()
            except StopIteration:
                return None
            for sample in drawn:
                self.notes.update(sample.notes)
            fitted = [self._fit(sample) for sample in drawn]
            self._pending = [sample for sample in fitted if sample is not None]
            self.dropped += len(fitted) - len(self._pending) if fitted else 1
        if self._pending:
            return self._pending.pop(0)
        raise DataError(
            f"no row of the data set has a target within seq_len = {self._seq_len}",
            where=f"{len(self._source)} rows, one after the other",
            next_step="raise seq_len, or check the rows' assistant turns and the `roles` to train",
        )

    def _fit(self, sample: SftSample) -> SftSample | None:
        """Return a sample that fits a row and has a target there, or None."""
        is_long = len(sample) > self._seq_len
        if is_long and self._too_long == "error":
            raise DataError(
                f"a sample has {len(sample)} tokens, more than seq_len = {self._seq_len}",
                where=f"row number {sample.index + 1} of the data set",
                next_step='raise trainer.seq_len, or set data.too_long = "truncate" or "drop"',
            )
        if is_long and self._too_long == "drop":
            return None
        cut = SftSample(sample.token_ids[: self._seq_len], sample.loss_mask[: self._seq_len], sample.index)
        if not any(cut.loss_mask[1:]):
            return None
        self.truncated += is_long
        return cut

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to go on: the source's place, the pending samples and the counters."""
        return {
            "source": self._source.state_dict(),
            "pending": [[sample.token_ids, sample.loss_mask, sample.index] for sample in self._pending],
            "truncated": self.truncated,
            "dropped": self.dropped,
            "notes": dict(self.notes),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self._source.load_state_dict(state["source"])
        self.truncated, self.dropped = state["truncated"], state["dropped"]
        self.notes = Counter(state.get("notes", {}))
        # `seq_len` may be another one now: what was drawn under the old one must fit this one's rows.
        fitted = [self._fit(SftSample(*sample)) for sample in state["pending"]]
        self._pending = [sample for sample in fitted if sample is not None]
        self.dropped += len(fitted) - len(self._pending)
