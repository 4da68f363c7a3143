"""The sink `wandb`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import wandb

from prl.types import Rollout

from .memory import run_id
from .options import WandbOptions


class WandbSink:
    """One run of Weights & Biases for one run folder, however often it is resumed."""

    def __init__(self, options: WandbOptions) -> None:
        self._options = options
        self._run: Any = None
        self._newest = 0

    def open(self, run_dir: Path, config: Mapping[str, Any]) -> None:
        """Begin the run, or go on with the one that the folder had."""
        made, _ = run_id(run_dir, "wandb")
        options = self._options
        self._run = wandb.init(
            id=made,
            resume="allow",
            project=options.project,
            entity=options.entity,
            name=options.name or run_dir.resolve().name,
            group=options.group,
            tags=list(options.tags) or None,
            mode=options.mode,
            dir=str(run_dir),
            config=dict(config),
            settings=wandb.Settings(silent=True),
        )

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Log one step under its own number; a late evaluation under the newest, for wandb takes no earlier one."""
        self._newest = max(step, self._newest)
        self._run.log(dict(values), step=self._newest)

    def rollouts(self, step: int, rollouts: Sequence[Rollout]) -> None:
        """Send no rollouts: they stay in the run folder."""

    def close(self) -> None:
        """Send what is left."""
        self._run.finish()


def create(options: WandbOptions) -> WandbSink:
    """Create the sink."""
    return WandbSink(options)
