"""What is optimised: advantages and losses. The losses, which need torch, are imported on first use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .advantages import grpo_advantages
from .loss_config import LossConfig

if TYPE_CHECKING:
    from .cross_entropy import cross_entropy_loss
    from .policy import LossSums, policy_loss

__all__ = ["LossConfig", "LossSums", "cross_entropy_loss", "grpo_advantages", "policy_loss"]

_HOMES = {"cross_entropy_loss": ".cross_entropy", "policy_loss": ".policy", "LossSums": ".policy"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name], __name__), name)
