"""Merge the layers and check them: file, then environment, then command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from prl.plugin import Record, build_options, get_registry

from .layers import read_toml
from .lines import line_of
from .sources import Sources, read_sources

M = TypeVar("M", bound=BaseModel)


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
    here, to be checked by the plugins' own models: `read_sources` and `Sources.telling` say where a wrong one was set.
    """
    return read_sources(model, path, overrides, env_prefix, environment=environment).load(model)


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
    sources = Sources(path, *read_toml(Path(path))) if path is not None else Sources()
    shown = ".".join(map(str, section))
    where = f"[{shown}] of {record.kind.replace('_', ' ')} {name!r}" if shown else ""
    with sources.telling():
        return build_options(record, options, where=where, section=section)


def locate_key(path: str | Path, key: Sequence[str | int]) -> str:
    """Return "file:line" of a key in a config file, or the file where the line is not known."""
    line = line_of(read_toml(Path(path))[1], key)
    return f"{path}:{line}" if line else str(path)
