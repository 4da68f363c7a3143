"""The trainer: a torch loop over packed micro-batches, its checkpoints and the weights it publishes.

The settings can be read without torch; everything else is imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .config import OptimizerConfig, TrainerConfig

if TYPE_CHECKING:
    from .checkpoint import checkpoint_path, latest_checkpoint, remove_old_checkpoints
    from .trainer import Trainer
    from .weights import WEIGHTS_MARKER, latest_weights, read_weights, remove_old_weights

__all__ = [
    "WEIGHTS_MARKER",
    "OptimizerConfig",
    "Trainer",
    "TrainerConfig",
    "checkpoint_path",
    "latest_checkpoint",
    "latest_weights",
    "read_weights",
    "remove_old_checkpoints",
    "remove_old_weights",
]


_HOMES = {
    "WEIGHTS_MARKER": ".weights",
    "Trainer": ".trainer",
    "checkpoint_path": ".checkpoint",
    "latest_checkpoint": ".checkpoint",
    "latest_weights": ".weights",
    "read_weights": ".weights",
    "remove_old_checkpoints": ".checkpoint",
    "remove_old_weights": ".weights",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name], __name__), name)
