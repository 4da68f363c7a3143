"""The registry of this process: built once, so that hooks fire once."""

from __future__ import annotations

import sys
import threading

from prl.types import PluginError, close_names

from .admission import is_core
from .discovery import discover
from .loader import load_plugin, load_plugins
from .registry import Registry
from .settings import ALLOW_VARIABLE, DISABLE_VARIABLE, PluginSettings, names_any

_lock = threading.RLock()
_current: list[Registry] = []
_building: list[bool] = []
_warned: set[str] = set()


def get_registry() -> Registry:
    """Return this process's registry; build it from the environment's settings on the first call.

    Raises `PluginError` where strict mode, `require` or `prefer` forbid to go on.
    """
    with _lock:
        return _current[0] if _current else _build(PluginSettings.from_environment())


def configure_registry(settings: PluginSettings) -> Registry:
    """Return the registry for these settings; plugins that were loaded before are not loaded again."""
    with _lock:
        if _current and _current[0].settings == settings:
            return _current[0]
        return _build(settings)


def reset_registry() -> None:
    """Forget everything that was discovered and loaded. For tests."""
    with _lock:
        _current.clear()
        _warned.clear()
        load_plugin.cache_clear()


def _build(settings: PluginSettings) -> Registry:
    if _building:
        raise PluginError(
            "a plugin asked for the registry while it was being built",
            next_step="Call get_registry() in the target, not in the light module nor in a hook.",
        )
    _building.append(True)
    try:
        registry = Registry.build(discover(), settings, load_plugins)
    finally:
        _building.clear()
    registry.check()
    for line in warnings_of(registry):
        if line not in _warned:  # a registry that is configured anew does not repeat itself
            print(line, file=sys.stderr)
            _warned.add(line)
    _current[:] = [registry]
    return registry


def warnings_of(registry: Registry) -> list[str]:
    """Return one line for each plugin that failed, and for each name in the settings that names no plugin."""
    rows = registry.plugins()
    lines = [
        f"prl: warning: plugin {row.name!r} ({row.plugin.dist} {row.plugin.version}): {row.status}: {row.outcome.error}"
        f" (see: prl plugins info {row.name})"
        for row in rows
        if row.failed
    ]
    known = [name for row in rows for name in dict.fromkeys((row.plugin.name, row.plugin.dist))]
    for variable, names in (
        (ALLOW_VARIABLE, registry.settings.allow or ()),
        (DISABLE_VARIABLE, registry.settings.disable),
    ):
        lines += [
            f"prl: warning: {variable} names {name!r}, which is not installed. {close_names(name, known)}".rstrip()
            for name in names
            if not names_any(known, name)
        ]
    if any(is_core(row.plugin) and names_any(registry.settings.disable, row.plugin.name) for row in rows):
        lines.append(f"prl: warning: {DISABLE_VARIABLE} names prl-core, which cannot be switched off")
    return lines
