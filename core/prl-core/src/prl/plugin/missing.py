"""Explain a name that nothing offers: installed but broken, a close name, known but not installed, then the list."""

from __future__ import annotations

from collections.abc import Sequence

from prl.types import PluginError, close_names

from .known import known_providers
from .naming import same_name
from .state import PluginRow


def missing_name(kind: str, name: str, *, rows: Sequence[PluginRow], names: Sequence[str]) -> PluginError:
    """Return the error for a missing name, chained to the fault of the installed plugin that would offer it."""
    broken = unloaded_provider(rows, [name], kind)
    if broken:
        return broken
    known = known_providers(kind, name)
    suspects = [row for row in rows if row.failed and not row.outcome.records]
    hints = [
        close_names(name, names),
        _install(known, rows),
        f"Available: {', '.join(names)}." if names else "No installed plugin offers one.",
    ]
    listed = "; ".join(f"{row.name} ({row.status}: {row.outcome.error})" for row in suspects)
    error = PluginError(
        f"no {kind.replace('_', ' ')} is named {name!r}",
        where=f"installed but not loaded: {listed}" if listed else "",
        next_step=" ".join(filter(None, hints)),
    )
    error.__cause__ = next((row.outcome.cause for row in suspects if row.outcome.cause), None)
    return error


def unloaded_provider(rows: Sequence[PluginRow], names: Sequence[str], kind: str = "renderer") -> PluginError | None:
    """Return the error for the first name whose plugin is installed but was not loaded, or None."""
    for name in names:
        known = known_providers(kind, name)
        for row in rows:
            if _would_offer(row, kind, name, known):
                return _broken(row, kind, name)
    return None


def install_hint(kind: str, names: Sequence[str], rows: Sequence[PluginRow]) -> str:
    """Return `Try: pip install ...` for a kind's known names, or nothing where none is known."""
    return _install(list(dict.fromkeys(dist for name in names for dist in known_providers(kind, name))), rows)


def _install(dists: Sequence[str], rows: Sequence[PluginRow]) -> str:
    """Return what brings the names of these distributions: installing one, or upgrading one that is too old."""
    absent = [dist for dist in dists if not any(same_name(row.plugin.dist, dist) for row in rows)]
    if absent:
        return f"Try: pip install {absent[0]}"
    return f"Try: pip install --upgrade {dists[0]}" if dists else ""


def _would_offer(row: PluginRow, kind: str, name: str, known: Sequence[str]) -> bool:
    if row.outcome.records:
        return False
    return (kind, name) in row.outcome.claimed or any(same_name(row.plugin.dist, dist) for dist in known)


def _broken(row: PluginRow, kind: str, name: str) -> PluginError:
    error = PluginError(
        f"{kind.replace('_', ' ')} {name!r} belongs to {row.plugin.dist} {row.plugin.version}, which is installed but "
        f"was not loaded ({row.status}): {row.outcome.error}",
        where=row.outcome.where or row.plugin.origin,
        next_step=row.outcome.next_step,
    )
    error.__cause__ = row.outcome.cause
    return error
