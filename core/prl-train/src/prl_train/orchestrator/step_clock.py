"""Where a step's time went, and how much was sampled in it."""

from __future__ import annotations

import time
from collections.abc import Sequence

from .groups import Group
from .pool import PoolCounts


class StepClock:
    """Times the orchestrator's steps: a step ends when its batch was collected, where the next one begins."""

    def __init__(self) -> None:
        self._step_began = self._wait_began = time.monotonic()
        self._wait = 0.0
        self._write = 0.0
        self._written_since: float | None = None

    def begin(self) -> None:
        """Begin to wait for the groups of a batch."""
        self._wait_began = time.monotonic()

    def collected(self) -> float:
        """Note that the groups are there; return the seconds waited for them."""
        now = time.monotonic()
        self._wait = now - self._wait_began
        self._written_since = now
        return self._wait

    def written(self) -> None:
        """Note that the batch was handed over; its time is part of the next step's."""
        if self._written_since is not None:
            self._write = time.monotonic() - self._written_since

    def measure(self, groups: Sequence[Group], counts: PoolCounts) -> dict[str, float]:
        """Return the step's seconds, their shares and the throughput, dropped groups included.

        `idle` is the time without any rollout in flight (the engine waits for weights), `write` that of measuring and
        writing the batch before.
        """
        now = time.monotonic()
        seconds = max(now - self._step_began, 1e-9)
        self._step_began = now
        rollouts = [rollout for group in (*groups, *counts.dropped) for rollout in group.rollouts]
        tokens = sum(len(turn.completion_ids) for rollout in rollouts for turn in rollout.turns)
        return {
            "time/step_s": seconds,
            "time/share/rollouts": min(self._wait / seconds, 1.0),
            "time/share/idle": min(counts.idle / seconds, 1.0),
            "time/share/write": min(self._write / seconds, 1.0),
            "throughput/tokens_per_s": tokens / seconds,
            "throughput/rollouts_per_s": len(rollouts) / seconds,
        }
