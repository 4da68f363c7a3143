"""Two configurations of one run: which keys differ."""

from __future__ import annotations

from typing import Any


def differences(saved: Any, mine: Any, path: str = "") -> list[str]:
    """Return the dotted keys whose values differ between two configurations, as JSON data; sections are compared."""
    if isinstance(saved, dict) and isinstance(mine, dict):
        keys = sorted(set(saved) | set(mine))
        return [
            found
            for key in keys
            for found in differences(saved.get(key), mine.get(key), f"{path}.{key}" if path else key)
        ]
    return [] if saved == mine else [path]
