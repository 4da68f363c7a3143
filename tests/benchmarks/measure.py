"""Paired CPU times: contestants run in turn on the same fresh input, ratios are medians over the pairs."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Run = Callable[[], Any]


@dataclass(frozen=True)
class Result:
    """One contestant's CPU seconds, one entry a repetition."""

    name: str
    seconds: list[float]

    @property
    def median(self) -> float:
        """Median CPU seconds."""
        return statistics.median(self.seconds)

    def times_less_than(self, other: Result) -> float:
        """Median over repetitions of how many times less CPU this one took."""
        return statistics.median(theirs / ours for ours, theirs in zip(self.seconds, other.seconds, strict=True))


def interleave(repetitions: int, prepare: Callable[[int], dict[str, Run]]) -> list[Result]:
    """Time every contestant once a repetition, in rotating order.

    `prepare(repetition)` makes the input and returns the contestants. CPU time counts all threads of the process.
    """
    seconds: dict[str, list[float]] = {}
    for repetition in range(repetitions):
        runs = list(prepare(repetition).items())
        shift = repetition % len(runs)
        for name, run in runs[shift:] + runs[:shift]:
            seconds.setdefault(name, []).append(_cpu(run))
    return [Result(name, times) for name, times in seconds.items()]


def _cpu(run: Run) -> float:
    gc.collect()
    gc.disable()
    try:
        begin = time.process_time()
        result = run()
        spent = time.process_time() - begin
        del result  # what a contestant made is freed when the clock has been read
        return spent
    finally:
        gc.enable()
