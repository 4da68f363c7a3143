"""Decide from metadata which plugins are imported at all: allowed, fitting this core, with a name of their own."""

from __future__ import annotations

from collections.abc import Sequence

from .discovery import CORE_PLUGIN, FoundPlugin
from .naming import same_name
from .settings import ALLOW_VARIABLE, DISABLE_VARIABLE, PluginSettings, names_any
from .state import Outcome, Status


def admit(found: Sequence[FoundPlugin], settings: PluginSettings) -> list[Outcome | None]:
    """Return per plugin the outcome that keeps it out, or None where it may be imported."""
    outcomes = [_metadata_fault(plugin) or _not_allowed(plugin, settings) or _unfit(plugin) for plugin in found]
    waiting = [plugin for plugin, outcome in zip(found, outcomes, strict=True) if outcome is None]
    return [
        outcome or _twin(plugin, [other for other in waiting if other is not plugin])
        for plugin, outcome in zip(found, outcomes, strict=True)
    ]


def is_core(plugin: FoundPlugin) -> bool:
    """Whether this is core's own plugin, which is always allowed."""
    return same_name(plugin.dist, CORE_PLUGIN)


def _metadata_fault(plugin: FoundPlugin) -> Outcome | None:
    if not plugin.problem:
        return None
    next_step = f"Run: pip install --force-reinstall {plugin.dist}"
    return Outcome(status=Status.ERROR, error=plugin.problem, where=plugin.origin, next_step=next_step)


def _not_allowed(plugin: FoundPlugin, settings: PluginSettings) -> Outcome | None:
    if is_core(plugin):
        return None
    if names_any(settings.disable, plugin.name, plugin.dist):
        return Outcome(
            status=Status.DISABLED,
            error="it is switched off",
            where=f"{DISABLE_VARIABLE} or disable in [plugins]",
            next_step=f"Take {plugin.name!r} out of {DISABLE_VARIABLE} and of disable in [plugins].",
        )
    if settings.allow is not None and not names_any(settings.allow, plugin.name, plugin.dist):
        return Outcome(
            status=Status.DISABLED,
            error=f"{ALLOW_VARIABLE} is set and does not name it",
            where=f"environment variable {ALLOW_VARIABLE}",
            next_step=f"Add {plugin.name!r} to {ALLOW_VARIABLE}, or unset it to allow every installed plugin.",
        )
    return None


def _unfit(plugin: FoundPlugin) -> Outcome | None:
    from .compat import incompatibility  # `packaging` is slow to import, and core alone does not need it

    return None if is_core(plugin) else incompatibility(plugin)


def _twin(plugin: FoundPlugin, others: Sequence[FoundPlugin]) -> Outcome | None:
    twins = [other for other in others if same_name(other.name, plugin.name)]
    if not twins or is_core(plugin):
        return None
    both = " and ".join(sorted(f"{one.dist} {one.version} at {one.origin}" for one in (plugin, *twins)))
    return Outcome(
        status=Status.CONFLICT,
        error=f"more than one distribution installs a plugin named {plugin.name!r}: {both}",
        where=f"entry point {plugin.name!r}",
        next_step=f'Uninstall one, or disable it by its distribution\'s name: [plugins] disable = ["{twins[0].dist}"].',
    )
