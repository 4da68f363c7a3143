"""The sink `trackio`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import trackio

from prl.types import Rollout

from .memory import run_id
from .options import TrackioOptions


class TrackioSink:
    """One run of Trackio for one run folder, however often it is resumed."""

    def __init__(self, options: TrackioOptions) -> None:
        self._options = options
        self._run: Any = None

    def open(self, run_dir: Path, config: Mapping[str, Any]) -> None:
        """Begin the run, or go on with the one that the folder had."""
        made, known = run_id(run_dir, "trackio")
        options = self._options
        self._run = trackio.init(
            project=options.project,
            # Trackio knows runs by name alone: the id keeps two folders of one name apart.
            name=options.name or f"{run_dir.resolve().name}-{made}",
            space_id=options.space_id,
            server_url=options.server_url,
            config=dict(config),
            resume="allow" if known else "never",
            embed=False,
        )

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Log one step under its own number."""
        self._run.log(dict(values), step=step)

    def rollouts(self, step: int, rollouts: Sequence[Rollout]) -> None:
        """Send no rollouts: they stay in the run folder."""

    def close(self) -> None:
        """Send what is left."""
        self._run.finish()


def create(options: TrackioOptions) -> TrackioSink:
    """Create the sink."""
    return TrackioSink(options)
