"""Supervised training: `prl sft`, and the warm-up before a reinforcement-learning run."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .config import DataConfig, SftConfig

if TYPE_CHECKING:
    from .loop import SftResult, run_sft
    from .warmup import warm_up

__all__ = ["DataConfig", "SftConfig", "SftResult", "run_sft", "warm_up"]

_HOMES = {"run_sft": ".loop", "SftResult": ".loop", "warm_up": ".warmup"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name], __name__), name)
