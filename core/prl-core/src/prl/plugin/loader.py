"""Load one plugin at a time: import, validate with pluggy, call its hooks alone. A fault stays that plugin's own.

pluggy's own loader is not used: one failing import aborts it, a duplicate name is dropped silently, and one raising
hook loses every other plugin's result.
"""

from __future__ import annotations

import functools
import importlib
import traceback
from collections.abc import Iterator, Sequence

import pluggy

from prl.types import PluginError

from . import hookspecs
from .discovery import FoundPlugin
from .records import Record
from .state import Outcome, Status
from .validate import check_module, check_records


def load_plugins(plugins: Sequence[FoundPlugin]) -> list[Outcome]:
    """Load plugins in this process; each outcome stands alone."""
    return [load_plugin(plugin) for plugin in plugins]


@functools.cache
def load_plugin(plugin: FoundPlugin) -> Outcome:
    """Import one plugin and collect its records; `KeyboardInterrupt` passes. Hooks fire once per process."""
    collected: list[Record] = []
    step = f"importing {plugin.value}"
    try:
        module = import_value(plugin.value)
        step = "reading its hooks"
        check_module(module)
        for hook, caller in _own_hooks(plugin, module):
            step = f"calling {hook}"
            for returned in caller():
                collected.extend(check_records(hook, returned))
        step = "collecting its records"
        _refuse_repeats(collected)
    except KeyboardInterrupt:
        raise
    except BaseException as cause:  # noqa: BLE001 - sys.exit and a panic of a Rust extension are no `Exception`
        return _failed(plugin, step, cause, collected)
    return Outcome(status=Status.LOADED, records=tuple(collected))


def import_value(value: str) -> object:
    """Import "module" or "module:attribute"; extras behind it ("module [extra]") say only what it may need."""
    module_name, _, attribute = value.partition("[")[0].partition(":")
    found: object = importlib.import_module(module_name.strip())
    for part in filter(None, attribute.strip().split(".")):
        found = getattr(found, part)
    return found


def _own_hooks(plugin: FoundPlugin, module: object) -> Iterator[tuple[str, pluggy.HookCaller]]:
    """Yield the plugin's hooks from a private manager, so that no other plugin's fault or wrapper can touch them."""
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    manager.register(module, name=plugin.name)
    manager.check_pending()
    for caller in manager.get_hookcallers(module) or ():
        if caller.spec is None:
            continue  # marked optionalhook: a hook of a newer core, which this one does not call
        for implementation in caller.get_hookimpls():
            if implementation.wrapper or implementation.hookwrapper:
                raise PluginError(
                    f"hook {caller.name!r} is a wrapper", next_step="Return records; do not wrap others' hooks."
                )
        yield caller.name, caller


def _refuse_repeats(records: Sequence[Record]) -> None:
    seen: set[tuple[str, str]] = set()
    for record in records:
        key = (record.kind, record.name)
        if key in seen:
            raise PluginError(f"it offers {record.kind} {record.name!r} twice", next_step="Offer each name once.")
        seen.add(key)


def _failed(plugin: FoundPlugin, step: str, cause: BaseException, collected: Sequence[Record]) -> Outcome:
    text, where, next_step = _told(cause)
    return Outcome(
        status=Status.ERROR,
        error=f"{step}: {text}",
        where=where or plugin.origin,
        next_step=next_step or f"Update or uninstall {plugin.dist}, or set PRL_DISABLE_PLUGINS={plugin.name}.",
        traceback="".join(traceback.format_exception(cause)),
        claimed=tuple((record.kind, record.name) for record in collected),
        cause=cause,
    )


def _told(cause: BaseException) -> tuple[str, str, str]:
    if isinstance(cause, PluginError):
        return cause.what, cause.where, cause.next_step
    frames = traceback.extract_tb(cause.__traceback__)
    where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    text = str(cause) if isinstance(cause, pluggy.PluginValidationError) else f"{type(cause).__name__}: {cause}"
    return " ".join(text.split()), where, ""
