"""Read from the hook specs which hook returns which record; there is no second list to keep."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Mapping

from prl.types import PluginError, close_names

from . import hookspecs
from .records import Record


@functools.cache
def hook_records() -> Mapping[str, type[Record]]:
    """Return hook name -> the record type it must return."""
    found: dict[str, type[Record]] = {}
    for name, function in inspect.getmembers(hookspecs, inspect.isfunction):
        if hasattr(function, f"{hookspecs.PROJECT}_spec"):
            returned = typing.get_type_hints(function)["return"]
            found[name] = typing.get_args(returned)[0]
    return found


@functools.cache
def record_types() -> Mapping[str, type[Record]]:
    """Return kind -> record type, for every kind there is."""
    return {record.kind: record for record in hook_records().values()}


def kind_name(kind: str | type[Record]) -> str:
    """Return a known kind's name; raise `PluginError` with the close one. `tool-parser` is read as `tool_parser`."""
    name = kind if isinstance(kind, str) else kind.kind
    name = name.replace("-", "_")
    if name not in record_types():
        kinds = sorted(record_types())
        raise PluginError(
            f"there is no kind of plugin named {name!r}",
            next_step=f"{close_names(name, kinds)} Kinds: {', '.join(kinds)}.".strip(),
        )
    return name
