"""JSON as encoders written in other languages write it: the same structure, other numbers and separators."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any


def write_json(value: Any, number: Callable[[int | float], str], *, comma: str = ", ", colon: str = ": ") -> str:
    """Write JSON with non-ASCII characters kept; `number` writes integers and floats. Keys become text."""
    if isinstance(value, Mapping):
        items = (
            f"{_text(str(key))}{colon}{write_json(item, number, comma=comma, colon=colon)}"
            for key, item in value.items()
        )
        return "{" + comma.join(items) + "}"
    if isinstance(value, list | tuple):
        return "[" + comma.join(write_json(item, number, comma=comma, colon=colon) for item in value) + "]"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return number(value)
    return _text(value)


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
