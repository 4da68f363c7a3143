"""Check what a plugin's module and its hooks return, field by field, before any of it counts."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Iterable

from prl.types import PluginError, close_names

from .hookspecs import PROJECT
from .kinds import hook_records
from .records import Record

_TARGET = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_SHA256 = re.compile(r"[0-9a-f]{64}")


def check_module(plugin: object) -> None:
    """Refuse a module whose hooks would be passed over: none marked, one that lacks its mark, or a misspelt one."""
    marked = 0
    for name, value in vars(plugin).items():
        marks = getattr(value, f"{PROJECT}_impl", None)
        own = inspect.isfunction(value) and value.__module__ == getattr(plugin, "__name__", value.__module__)
        if isinstance(marks, dict):
            marked += 1
            _refuse_misspelt(marks.get("specname") or name, value, optional=bool(marks.get("optionalhook")))
        elif own and name.startswith(f"{PROJECT}_"):
            raise PluginError(
                f"function {name!r} looks like a hook and lacks @hookimpl",
                where=_place(value),
                next_step=f"Mark it with @hookimpl, or rename it. {close_names(name, hook_records())}".strip(),
            )
    if not marked and inspect.ismodule(plugin):
        raise PluginError(
            f"module {plugin.__name__!r} implements no hook",
            where=plugin.__file__ or "",
            next_step=f"Mark one of these with @hookimpl: {', '.join(hook_records())}.",
        )


def _refuse_misspelt(hook: str, function: object, *, optional: bool) -> None:
    if optional or hook in hook_records():
        return
    raise PluginError(
        f"unknown hook {hook!r}",
        where=_place(function),
        next_step=f"{close_names(hook, hook_records())} Hooks: {', '.join(hook_records())}.".strip(),
    )


def check_records(hook: str, returned: object) -> list[Record]:
    """Return the records of one hook; raise `PluginError` naming the first that is wrong. An iterator is used up."""
    wanted = hook_records()[hook]
    if isinstance(returned, Record | str) or not isinstance(returned, Iterable):
        raise PluginError(
            f"{hook} returned {returned!r}", next_step=f"Return a list of {wanted.__name__}, also where there is one."
        )
    records: list[Record] = []
    for item in returned:
        if type(item) is not wanted:
            raise PluginError(f"{hook} returned {item!r}", next_step=f"Return {wanted.__name__} records from {hook}.")
        check_record(item)
        records.append(item)
    return records


def check_record(record: Record) -> None:
    """Raise `PluginError` where a field has the wrong type or form."""
    for name, hint in _hints(type(record)).items():
        if not _fits(getattr(record, name), hint):
            raise _bad_field(record, name, f"must be {_spelled(hint)}")
    if not record.name.strip() or record.name != record.name.strip():
        raise _bad_field(record, "name", "must be a name without blanks around it")
    for name in ("target", "options", "config"):
        value = getattr(record, name, None)
        if value is None or (name != "target" and value == ""):
            continue
        if not _TARGET.fullmatch(value):
            raise _bad_field(record, name, 'must be "module:attribute"')
    for digest in getattr(record, "templates", ()):
        if not _SHA256.fullmatch(digest):
            raise _bad_field(record, "templates", "must be sha256 sums as 64 lower-case hex digits")


def _hints(record: type[Record]) -> dict[str, typing.Any]:
    return {
        name: hint
        for name, hint in typing.get_type_hints(record).items()
        if typing.get_origin(hint) is not typing.ClassVar
    }


def _fits(value: object, hint: typing.Any) -> bool:
    if typing.get_origin(hint) is tuple:
        item = typing.get_args(hint)[0]
        return isinstance(value, tuple) and all(isinstance(entry, item) for entry in value)
    return isinstance(value, hint)


def _spelled(hint: typing.Any) -> str:
    return str(hint) if typing.get_origin(hint) else getattr(hint, "__name__", str(hint))


def _bad_field(record: Record, field: str, rule: str) -> PluginError:
    return PluginError(
        f"{type(record).__name__} {record.name!r}: {field} {rule}, and is {getattr(record, field)!r}",
        next_step=f"Correct {field} in the plugin's hook.",
    )


def _place(function: object) -> str:
    code = getattr(function, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else ""
