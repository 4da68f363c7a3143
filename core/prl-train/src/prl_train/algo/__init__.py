"""What is optimised: advantages and losses. What needs torch is imported on first use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .advantages import grpo_advantages
from .loss_config import LossConfig

if TYPE_CHECKING:
    from .resolve import resolve_loss
    from .streams import Counts, check_streams, count_targets, loss_inputs
    from .sums import LossSums

__all__ = [
    "Counts",
    "LossConfig",
    "LossSums",
    "check_streams",
    "count_targets",
    "grpo_advantages",
    "loss_inputs",
    "resolve_loss",
]

_HOMES = {
    "Counts": ".streams",
    "LossSums": ".sums",
    "check_streams": ".streams",
    "count_targets": ".streams",
    "loss_inputs": ".streams",
    "resolve_loss": ".resolve",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name], __name__), name)
