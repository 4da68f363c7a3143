"""All sinks of a run as one; a sink that raises is reported and switched off, the run goes on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from prl.contracts import Sink
from prl.types import Rollout
from prl_train.run import StorageError


class SinkSet:
    """Passes records on to each sink that still works."""

    def __init__(self, sinks: Mapping[str, Sink]) -> None:
        self._sinks = dict(sinks)
        self.failures: dict[str, str] = {}

    def open(self, run_dir: Path, config: Mapping[str, Any]) -> None:
        """Begin or continue a run in every sink."""
        self._each(lambda sink: sink.open(run_dir, config))

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Pass on one step's metrics."""
        self._each(lambda sink: sink.metrics(step, values))

    def rollouts(self, step: int, rollouts: Sequence[Rollout]) -> None:
        """Pass on one step's rollouts."""
        self._each(lambda sink: sink.rollouts(step, rollouts))

    def close(self) -> None:
        """End the run in every sink."""
        self._each(lambda sink: sink.close())

    def _each(self, act: Callable[[Sink], None]) -> None:
        for name, sink in list(self._sinks.items()):
            try:
                act(sink)
            except StorageError:  # the run's own record: a row that is not written would be lost
                raise
            except Exception as error:  # noqa: BLE001 - a sink is third-party code and must never stop a run
                del self._sinks[name]
                self.failures[name] = f"{type(error).__name__}: {error}"
                print(f"prl: sink {name!r} failed and is switched off: {self.failures[name]}", file=sys.stderr)
