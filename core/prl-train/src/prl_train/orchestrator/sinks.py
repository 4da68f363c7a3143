"""All sinks of a run as one: the run's own record in turn, those of others each in a thread of its own."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from prl.contracts import Sink
from prl.types import Rollout

from .sink_thread import SinkThread

PATIENCE = 60.0
"""Seconds that all sinks together get at the end of a run to take what waits."""


@runtime_checkable
class RunRecord(Protocol):
    """A sink that is the run's own record: it takes everything, and what it raises ends the run."""

    is_run_record: bool


class SinkSet:
    """Passes records on to each sink. One that raises is reported and switched off; none of them holds up the run."""

    def __init__(self, sinks: Mapping[str, Sink], *, patience: float = PATIENCE) -> None:
        self._records = [sink for sink in sinks.values() if isinstance(sink, RunRecord)]
        self._others = [SinkThread(name, sink) for name, sink in sinks.items() if not isinstance(sink, RunRecord)]
        self._served: list[Sink | SinkThread] = [*self._records, *self._others]
        self._patience = patience

    @property
    def failures(self) -> dict[str, str]:
        """Why sinks were switched off, by name."""
        return {one.name: one.failure for one in self._others if one.failure is not None}

    @property
    def left_out(self) -> dict[str, int]:
        """How many records each sink was too slow for, by name."""
        return {one.name: one.left_out for one in self._others if one.left_out}

    def open(self, run_dir: Path, config: Mapping[str, Any]) -> None:
        """Begin or continue a run in every sink."""
        for one in self._served:
            one.open(run_dir, config)

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Pass on one step's metrics."""
        for one in self._served:
            one.metrics(step, values)

    def rollouts(self, step: int, rollouts: Sequence[Rollout]) -> None:
        """Pass on one step's rollouts."""
        for one in self._served:
            one.rollouts(step, rollouts)

    def close(self) -> None:
        """End the run in every sink; wait for those that still take what waits, but not for ever."""
        deadline = time.monotonic() + self._patience
        for one in self._others:
            one.end()
        for record in self._records:
            record.close()
        for one in self._others:
            one.join(max(0.0, deadline - time.monotonic()))
