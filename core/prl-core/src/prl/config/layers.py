"""Read one layer of config: a TOML file, environment variables, or `key=value` pairs from the command line."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prl.types import ConfigError

from .lines import split_key

RESERVED = ("PRL_PLUGINS", "PRL_DISABLE_PLUGINS", "PRL_STRICT_PLUGINS", "PRL_DEBUG")


@dataclass(frozen=True, slots=True)
class Assignment:
    """One value set from outside the file: its key path, what was written, and where."""

    path: tuple[str, ...]
    text: str
    where: str

    @property
    def value(self) -> Any:
        """The text as a TOML value, or as a string where it is none."""
        try:
            parsed = tomllib.loads(f"value = {self.text}")
        except tomllib.TOMLDecodeError:
            return self.text
        return parsed["value"] if len(parsed) == 1 else self.text


def read_toml(path: Path) -> tuple[dict[str, Any], str]:
    """Return a file's data and its text; raise `ConfigError` with file and line."""
    try:
        text = path.read_text(encoding="utf-8-sig")  # some editors begin a file with a byte order mark
    except OSError as cause:
        raise ConfigError(
            f"the config file cannot be read: {cause.strerror or cause}",
            where=str(path),
            next_step="Give an existing TOML file.",
        ) from cause
    except UnicodeDecodeError as cause:
        raise ConfigError("the config file is not UTF-8", where=str(path), next_step="Save it as UTF-8.") from cause
    try:
        return tomllib.loads(text), text
    except tomllib.TOMLDecodeError as cause:
        raise ConfigError(
            f"the config file is not valid TOML: {cause}", where=str(path), next_step="Correct that line."
        ) from cause


def from_environment(environment: Mapping[str, str], prefix: str, fields: Iterable[str]) -> list[Assignment]:
    """Return the variables that mean config keys: `PRL_TRAINER__LR=1e-4` is `trainer.lr`.

    A variable counts where it has a double underscore or names a top-level key; the plugin switches never do.
    """
    names = set(fields)
    found = []
    for variable, text in sorted(environment.items()):
        if not variable.startswith(prefix) or variable in RESERVED:
            continue
        path = tuple(part.lower() for part in variable.removeprefix(prefix).split("__"))
        if len(path) > 1 or path[0] in names:
            found.append(Assignment(path, text, f"environment variable {variable}"))
    return found


def refuse_near_misses(environment: Mapping[str, str], prefix: str, keys: Mapping[str, Sequence[str]]) -> None:
    """Raise `ConfigError` for `PRL_TRAINER_LR`: it would set nothing, and `PRL_TRAINER__LR` is meant.

    `keys` are those of each section.
    """
    for section, names in keys.items():
        for name in names:
            meant = f"{section}_{name}".upper()
            if f"{prefix}{meant}" in environment:
                raise ConfigError(
                    f"{prefix}{meant} sets nothing: section and key are joined by two underscores",
                    where=f"environment variable {prefix}{meant}",
                    next_step=f"Write {prefix}{section.upper()}__{name.upper()}.",
                )


def from_pairs(pairs: Sequence[str]) -> list[Assignment]:
    """Read `key=value` pairs with dotted keys; raise `ConfigError` on a text without a key and `=`."""
    found = []
    for pair in pairs:
        key, separator, text = pair.partition("=")
        path = split_key(key)
        if not separator or not all(path) or not path:
            raise ConfigError(
                f"{pair!r} is not a key and a value",
                where="command line",
                next_step="Write key=value with a dotted key, such as trainer.lr=1e-4.",
            )
        found.append(Assignment(path, text.strip(), f"command line {pair!r}"))
    return found


def assign(data: dict[str, Any], assignment: Assignment, value: Any) -> None:
    """Set one value in nested data; a number in the path is an index into an array that is there."""
    current: Any = data
    for depth, part in enumerate(assignment.path):
        last = depth == len(assignment.path) - 1
        if isinstance(current, list):
            index = _index(current, part, assignment)
            if last:
                current[index] = value
            current = current[index]
        elif isinstance(current, dict):
            if last:
                current[part] = value
            else:
                current = current.setdefault(part, {})
        else:
            raise ConfigError(
                f"{'.'.join(assignment.path[:depth])!r} is a value, not a section",
                where=assignment.where,
                next_step="Set the value itself, or correct the key.",
            )


def _index(array: list[Any], part: str, assignment: Assignment) -> int:
    if part.isdecimal() and int(part) < len(array):
        return int(part)
    raise ConfigError(
        f"{part!r} is no index into an array of {len(array)}",
        where=assignment.where,
        next_step=f"Use 0 to {len(array) - 1}." if array else "Set the array in the file first.",
    )
