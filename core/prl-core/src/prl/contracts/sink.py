"""A sink: where a run's metrics and rollouts go besides the run folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from prl.types import Rollout


@runtime_checkable
class Sink(Protocol):
    """Receives a run's records. A sink that raises is reported and switched off; it never stops the run."""

    def open(self, run_dir: Path, config: Mapping[str, Any]) -> None:
        """Begin a run (or continue one)."""
        ...

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Take one step's metrics.

        Steps come in order, each once. An evaluation that took longer comes in a record of its own, which holds nothing
        but `eval/<name>/...`, after later steps'; `eval/<name>/step` is its step.
        """
        ...

    def rollouts(self, step: int, rollouts: Sequence[Rollout]) -> None:
        """Take one step's rollouts."""
        ...

    def close(self) -> None:
        """End the run."""
        ...
