"""Import a record's target on first use, and build what a plugin offers."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from prl.types import ConfigError, PluginError

from .loader import import_value
from .process import get_registry
from .records import Record

if TYPE_CHECKING:
    from pydantic import BaseModel


def load_target(record: Record) -> Any:
    """Import and return a record's target; raise `PluginError` naming what is missing and what brings it."""
    check_needs(record)
    return _import(record, record.target)


def check_needs(record: Record) -> None:
    """Raise `PluginError` with the install command where a module that the record needs is not installed."""
    absent = missing_needs(record)
    if absent:
        raise PluginError(
            f"{record.kind.replace('_', ' ')} {record.name!r} needs {', '.join(absent)}, which cannot be imported",
            where=record.target,
            next_step=f"Run: {_install(record)}" if _install(record) else f"Install {', '.join(absent)}.",
        )


def missing_needs(record: Record) -> list[str]:
    """Return the modules a record needs that are not installed; only parents of dotted names are imported."""
    return [module for module in getattr(record, "needs", ()) if not _is_installed(module)]


def build_options(
    record: Record,
    values: Mapping[str, Any],
    *,
    where: str = "",
    section: Sequence[str | int] | None = None,
) -> BaseModel:
    """Check a plain mapping against the record's own options model; unknown keys and wrong types are `ConfigError`.

    `section` is the place of the options in a config, such as `("engine", "options")`.
    """
    from .options import NoOptions, build_model  # pydantic, which only options need

    target = str(getattr(record, "options", ""))
    model: type[BaseModel] = _import(record, target) if target else NoOptions
    place = where or f"options of {record.kind.replace('_', ' ')} {record.name!r}"
    return build_model(model, values, where=place, section=section)


def required_options(record: Record) -> list[str]:
    """Return the options without which a record's target cannot be called."""
    target = str(getattr(record, "options", ""))
    if not target:
        return []
    model: type[BaseModel] = _import(record, target)
    return [field.alias or name for name, field in model.model_fields.items() if field.is_required()]


def create(kind: str, name: str, /, *args: Any, **options: Any) -> Any:
    """Find a name, check its options, and call its target with the arguments and the options model.

    Kinds without options (attention kernels, checks) are called with the arguments alone.
    """
    record = get_registry().find(kind, name)
    if not hasattr(record, "options"):
        if options:
            raise ConfigError(
                f"{record.kind.replace('_', ' ')} {name!r} takes no options, and got {', '.join(sorted(options))}",
                next_step="Remove them.",
            )
        return load_target(record)(*args)
    checked = build_options(record, options)
    return load_target(record)(*args, checked)


def _import(record: Record, value: str) -> Any:
    try:
        return import_value(value)
    except KeyboardInterrupt:
        raise
    except BaseException as cause:  # the loader's second half: whatever a plugin's module raises is told
        hint = f" Try: {_install(record)}" if _install(record) else ""
        raise PluginError(
            f"{record.kind.replace('_', ' ')} {record.name!r} cannot be loaded: {type(cause).__name__}: {cause}",
            where=value,
            next_step=f"Repair or reinstall the plugin that offers it.{hint}",
        ) from cause


def _install(record: Record) -> str:
    return str(getattr(record, "install", ""))


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ModuleNotFoundError, ValueError):
        return False
