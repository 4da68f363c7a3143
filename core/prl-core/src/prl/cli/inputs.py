"""Read a command's input: a file, or `-` for standard input."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prl.types import ConfigError

STANDARD_INPUT = ("-", "/dev/stdin")


def read_text(source: str) -> str:
    """Return a file's text, or standard input for `-`."""
    if source in STANDARD_INPUT:
        return sys.stdin.read().removeprefix("\ufeff")
    try:
        return Path(source).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as cause:
        raise ConfigError(
            f"the input cannot be read: {cause}", where=source, next_step="Give a UTF-8 file, or - for standard input."
        ) from cause


def read_json(source: str) -> Any:
    """Return the JSON value of a file or of standard input; raise `ConfigError` with line and column."""
    text = read_text(source)
    try:
        return json.loads(text)
    except json.JSONDecodeError as cause:
        place = "standard input" if source in STANDARD_INPUT else source
        raise ConfigError(
            f"the input is not JSON: {cause.msg}",
            where=f"{place}:{cause.lineno}:{cause.colno}",
            next_step="Correct it there.",
        ) from cause


def read_objects(source: str, key: str) -> list[Any]:
    """Return a JSON array of objects, given as such or under `key` of an object (a row of a data set)."""
    data = read_json(source)
    if isinstance(data, dict):
        data = data.get(key)
    if not isinstance(data, list) or not all(isinstance(item, dict) for item in data):
        raise ConfigError(
            f"the input holds no array of {key}", where=source, next_step=f'Write [{{...}}, ...] or {{"{key}": [...]}}.'
        )
    return data


def read_ids(source: str) -> list[int]:
    """Return token ids: a JSON array, or numbers between blanks and commas."""
    text = read_text(source)
    words = re.split(r"[\s,\[\]]+", text.strip())
    try:
        return [int(word) for word in words if word]
    except ValueError as cause:
        raise ConfigError(
            f"the input holds something that is no token id: {cause}",
            where=source,
            next_step="Write [1, 2, 3] or 1 2 3.",
        ) from cause


def read_options(pairs: Sequence[str]) -> dict[str, Any]:
    """Return `key=value` pairs as a mapping with TOML values."""
    from prl.config.layers import assign, from_pairs

    options: dict[str, Any] = {}
    for one in from_pairs(pairs):
        assign(options, one, one.value)
    return options
