"""The sink `tensorboard`."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tensorboardX import SummaryWriter

from prl.types import Rollout

from .options import TensorboardOptions


class TensorboardSink:
    """Event files: one curve per metric."""

    def __init__(self, options: TensorboardOptions) -> None:
        self._options = options
        self._writer: Any = None

    def open(self, run_dir: Path, config: Mapping[str, Any]) -> None:
        """Begin an event file; a resumed run adds another one to the same curves."""
        directory = self._options.directory or run_dir / "tensorboard"
        # Files are named by the second: of two starts within one, the later would replace the earlier.
        self._writer = SummaryWriter(str(directory), filename_suffix=f".{secrets.token_hex(4)}")
        self._writer.add_text("config", f"```json\n{json.dumps(config, indent=1, default=str)}\n```", 0)

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Add one point to each curve."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def rollouts(self, step: int, rollouts: Sequence[Rollout]) -> None:
        """Write no rollouts: they stay in the run folder."""

    def close(self) -> None:
        """Close the file."""
        self._writer.close()


def create(options: TensorboardOptions) -> TensorboardSink:
    """Create the sink."""
    return TensorboardSink(options)
