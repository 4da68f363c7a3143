"""Write a config back: resolved as TOML, or its JSON schema."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from datetime import date, datetime, time
from typing import Any

from pydantic import BaseModel

from prl.types import ConfigError

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_ESCAPES = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\"}


def config_schema(model: type[BaseModel]) -> str:
    """Return the JSON schema of a config model, as text."""
    return json.dumps(model.model_json_schema(), indent=2, ensure_ascii=False)


def to_toml(config: BaseModel | Mapping[str, Any]) -> str:
    """Return a config as TOML text that loads to the same config; unset (None) keys are left out."""
    data = config.model_dump(mode="json", exclude_none=True) if isinstance(config, BaseModel) else config
    return "\n".join(_table(data, ())).lstrip("\n") + "\n"


def _table(data: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    """Return a table's own values first, then its sub-tables: TOML's rule for what belongs to which header."""
    present = {key: value for key, value in data.items() if value is not None}
    lines = [f"{_key(key)} = {_value(value)}" for key, value in present.items() if not _is_section(value)]
    for key, value in present.items():
        if not _is_section(value):
            continue
        inner = (*path, key)
        header = ".".join(map(_key, inner))
        if isinstance(value, Mapping):
            lines += ["", f"[{header}]", *_table(value, inner)]
        else:
            for item in value:
                lines += ["", f"[[{header}]]", *_table(item, inner)]
    return lines


def _is_section(value: Any) -> bool:
    if isinstance(value, Mapping):
        return True
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(item, Mapping) for item in value)


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _string(key)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_key(key)} = {_value(item)}" for key, item in value.items() if item is not None)
        return f"{{{inner}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if value is None:
        raise ConfigError("an array holds a null, which TOML cannot say", next_step="Leave the element out.")
    return _string(str(value))


def _float(value: float) -> str:
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return repr(value)


def _string(text: str) -> str:
    out = "".join(
        _ESCAPES.get(char) or (f"\\u{ord(char):04x}" if ord(char) < 0x20 or ord(char) == 0x7F else char)
        for char in text
    )
    return f'"{out}"'
