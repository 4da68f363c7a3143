"""The running sequences and their cache rows: filling, one decode step, removing."""

from __future__ import annotations

import math
from collections.abc import Collection
from collections.abc import Sequence as SequenceOf

from .runner import ModelRunner
from .sampling import Sampler
from .sequence import Sequence


class Batch:
    """Sequence i of `sequences` owns row i of the cache."""

    def __init__(self, runner: ModelRunner, prefill_tokens: int) -> None:
        self.sequences: list[Sequence] = []
        self._runner = runner
        self._prefill_tokens = prefill_tokens
        self._sampler: Sampler | None = None

    def __len__(self) -> int:
        return len(self.sequences)

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        return max((len(sequence.tokens) for sequence in self.sequences), default=0)

    def add(self, new: SequenceOf[Sequence]) -> None:
        """Fill rows for new sequences: a prefix shared by several, or with a running one, is computed once."""
        self._sampler = None
        for sequence in new:
            sequence.prefix = tuple(sequence.tokens[:-1])
        longest = max(self.longest, max((len(sequence.tokens) for sequence in new), default=0))
        self._runner.cache.reserve(len(self.sequences) + len(new), longest)
        rows: dict[tuple[int, ...], int] = {}
        for row, sequence in enumerate(self.sequences):
            rows.setdefault(sequence.prefix, row)
        rest = self._add_scored(new, rows)
        fresh: dict[tuple[int, ...], Sequence] = {}
        copies: list[Sequence] = []
        for sequence in rest:
            if sequence.prefix in rows or sequence.prefix in fresh:
                copies.append(sequence)
            else:
                fresh[sequence.prefix] = sequence
        self._add_fresh(fresh, rows)
        self._add_copies(copies, rows)

    def _add_scored(self, new: SequenceOf[Sequence], rows: dict[tuple[int, ...], int]) -> list[Sequence]:
        """Fill the rows whose prompts also want log-probabilities, one at a time; return the other sequences."""
        rest: list[Sequence] = []
        for sequence in new:
            job = sequence.job
            if job.request.prompt_logprobs and job.prompt_logprobs is None:
                rows[sequence.prefix] = len(self.sequences)
                job.prompt_logprobs = [None, *self._runner.score(len(self.sequences), sequence.tokens)]
                self.sequences.append(sequence)
            else:
                rest.append(sequence)
        return rest

    def _add_fresh(self, fresh: dict[tuple[int, ...], Sequence], rows: dict[tuple[int, ...], int]) -> None:
        ordered = sorted(fresh, key=len, reverse=True)
        while ordered:
            size = max(1, self._prefill_tokens // max(1, len(ordered[0])))
            group, ordered = ordered[:size], ordered[size:]
            start = len(self.sequences)
            self._runner.prefill(start, group)
            for row, prefix in enumerate(group, start):
                rows[prefix] = row
                self.sequences.append(fresh[prefix])

    def _add_copies(self, copies: SequenceOf[Sequence], rows: dict[tuple[int, ...], int]) -> None:
        targets: dict[tuple[int, ...], list[int]] = {}
        for sequence in copies:
            targets.setdefault(sequence.prefix, []).append(len(self.sequences))
            self.sequences.append(sequence)
        for prefix, where in targets.items():
            self._runner.cache.copy_row(rows[prefix], where, len(prefix))

    def step(self) -> list[Sequence]:
        """Sample one token for every sequence; return those whose values are not finite (they took no token)."""
        sequences = self.sequences
        logits = self._runner.decode(
            [sequence.tokens[-1] for sequence in sequences], [len(sequence.tokens) - 1 for sequence in sequences]
        )
        if self._sampler is None:
            self._sampler = Sampler(sequences, self._runner.device)
        broken: list[Sequence] = []
        for sequence, token, logprob in zip(sequences, *self._sampler.draw(logits), strict=True):
            if math.isfinite(logprob):
                sequence.append(token, logprob)
            else:
                broken.append(sequence)
        return broken

    def remove(self, leaving: Collection[Sequence]) -> None:
        """Take sequences out; rows from the end move into the holes."""
        gone = set(map(id, leaving))
        holes = [row for row, sequence in enumerate(self.sequences) if id(sequence) in gone]
        if not holes:
            return
        self._sampler = None
        kept = len(self.sequences) - len(holes)
        length = self.longest
        targets = [row for row in holes if row < kept]
        sources = [row for row in range(kept, len(self.sequences)) if id(self.sequences[row]) not in gone]
        for source, target in zip(sources, targets, strict=True):
            self.sequences[target] = self.sequences[source]
        self._runner.cache.move_rows(sources, targets, length)
        del self.sequences[kept:]

    def clear(self) -> None:
        """Forget everything, cache included."""
        self.sequences.clear()
        self._sampler = None
        self._runner.cache.release()
