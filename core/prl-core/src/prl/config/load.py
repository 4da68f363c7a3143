"""Merge the layers and check them: file, then environment, then command line."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from prl.plugin import Record, build_options, get_registry
from prl.plugin.options import build_model, field_names

from .layers import Assignment, assign, from_environment, from_pairs, read_toml
from .lines import line_of

M = TypeVar("M", bound=BaseModel)
Locate = Callable[[tuple[str | int, ...]], str]


def load_config(
    model: type[M],
    path: str | Path | None,
    overrides: Sequence[str] = (),
    env_prefix: str = "PRL_",
    *,
    environment: Mapping[str, str] | None = None,
) -> M:
    """Return the checked config; raise `ConfigError` naming key, file, line and the close name.

    `overrides` are `dotted.key=value` texts, with values in TOML or plain text. Sections of plugins stay mappings
    here; check them with `check_plugin_options`.
    """
    data, text = read_toml(Path(path)) if path is not None else ({}, "")
    assignments = from_environment(os.environ if environment is None else environment, env_prefix, field_names(model))
    assignments += from_pairs(overrides)
    for one in assignments:
        assign(data, one, one.value)
    _keep_texts(model, data, assignments)
    return build_model(model, data, where="", locate=_locator(path, text, assignments))


def check_plugin_options(
    kind: str,
    name: str,
    options: Mapping[str, Any],
    *,
    section: Sequence[str | int] = (),
    path: str | Path | None = None,
) -> BaseModel:
    """Check a plugin's section with the plugin's own model, the second stage; errors name the file and the line.

    `section` is the key path of the options in the file, such as `("engine", "options")`.
    """
    record: Record = get_registry().find(kind, name)
    text = read_toml(Path(path))[1] if path is not None else ""
    locate = _locator(path, text, [])
    shown = ".".join(map(str, section))
    where = f"[{shown}] of {record.kind.replace('_', ' ')} {name!r}" if shown else ""
    return build_options(record, options, where=where, locate=lambda key: locate((*section, *key)))


def locate_key(path: str | Path, key: Sequence[str | int]) -> str:
    """Return "file:line" of a key in a config file, or the file where the line is not known."""
    line = line_of(read_toml(Path(path))[1], key)
    return f"{path}:{line}" if line else str(path)


def _locator(path: str | Path | None, text: str, assignments: Sequence[Assignment]) -> Locate:
    def locate(key: tuple[str | int, ...]) -> str:
        parts = tuple(map(str, key))
        for one in reversed(assignments):
            if parts[: len(one.path)] == one.path or one.path[: len(parts)] == parts:
                return one.where
        line = line_of(text, key)
        return f"{path}:{line}" if line else str(path or "")

    return locate


def _keep_texts(model: type[BaseModel], data: dict[str, Any], assignments: Sequence[Assignment]) -> None:
    """Give text fields the text as it was written: `run.name=123` names a run, it is no number."""
    if not assignments:
        return
    try:
        model.model_validate(data)
    except ValidationError as error:
        wrong = {tuple(map(str, one["loc"])) for one in error.errors() if one["type"] == "string_type"}
        for one in assignments:
            if one.path in wrong:
                assign(data, one, one.text)
