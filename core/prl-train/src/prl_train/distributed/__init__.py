"""One trainer in several processes: who they are, how they talk, how a model is divided among them.

The launcher is torch's (`torchrun`, or anything that sets its environment variables); `prl rl` starts local processes
itself. Everything here is imported on first use, because it needs torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .local import LocalProcesses
    from .place import Place, find_place
    from .world import World, current_world, joined_world

__all__ = ["LocalProcesses", "Place", "World", "current_world", "find_place", "joined_world"]

_HOMES = {
    "LocalProcesses": ".local",
    "Place": ".place",
    "World": ".world",
    "current_world": ".world",
    "find_place": ".place",
    "joined_world": ".world",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name], __name__), name)
