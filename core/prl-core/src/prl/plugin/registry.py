"""The registry: who offers which name, and the one record a name means."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar, overload

from prl.types import PluginError, close_names

from .admission import admit
from .discovery import FoundPlugin
from .kinds import kind_name
from .missing import missing_name
from .records import Record
from .settings import PluginSettings, names_any
from .state import Outcome, PluginRow, Status

R = TypeVar("R", bound=Record)
Load = Callable[[Sequence[FoundPlugin]], Sequence[Outcome]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """One name that two plugins offer and nothing settles."""

    kind: str
    name: str
    plugins: tuple[FoundPlugin, ...]

    def error(self) -> PluginError:
        """Return the error that lists both and prints the line that settles it."""
        listed = "; ".join(str(plugin) for plugin in self.plugins)
        lines = " or ".join(f'"{self.kind}:{self.name}" = "{plugin.name}"' for plugin in self.plugins)
        return PluginError(
            f"{self.kind} {self.name!r} is offered by {len(self.plugins)} plugins",
            where=listed,
            next_step=f"Choose one in the config: [plugins.prefer] {lines}",
        )


@dataclass(frozen=True, kw_only=True)
class Registry:
    """All plugins of this process and the names they offer. Build it with `build`; it never changes."""

    settings: PluginSettings = field(default_factory=PluginSettings)
    _rows: tuple[PluginRow, ...] = ()
    _chosen: dict[tuple[str, str], tuple[FoundPlugin, Record]] = field(default_factory=dict)
    _conflicts: dict[tuple[str, str], Conflict] = field(default_factory=dict)

    @classmethod
    def build(cls, found: Sequence[FoundPlugin], settings: PluginSettings, load: Load) -> Registry:
        """Admit, load and index plugins. Nothing is raised: every fault is a row, and a conflict is an error on use."""
        kept_out = admit(found, settings)
        admitted = [plugin for plugin, outcome in zip(found, kept_out, strict=True) if outcome is None]
        loaded = iter(load(admitted))
        rows = [
            PluginRow(plugin=plugin, outcome=next(loaded) if outcome is None else outcome)
            for plugin, outcome in zip(found, kept_out, strict=True)
        ]
        providers: dict[tuple[str, str], list[tuple[FoundPlugin, Record]]] = {}
        for row in rows:
            for record in row.outcome.records:
                providers.setdefault((record.kind, record.name), []).append((row.plugin, record))
        chosen: dict[tuple[str, str], tuple[FoundPlugin, Record]] = {}
        conflicts: dict[tuple[str, str], Conflict] = {}
        for key, offers in providers.items():
            meant = _preferred(offers, settings.prefer.get(":".join(key)))
            if len(meant) == 1:
                chosen[key] = meant[0]
            elif len(offers) > 1:
                conflicts[key] = Conflict(kind=key[0], name=key[1], plugins=tuple(plugin for plugin, _ in offers))
        marked = tuple(_mark(row, conflicts.values()) for row in rows)
        return cls(settings=settings, _rows=marked, _chosen=chosen, _conflicts=conflicts)

    @overload
    def find(self, kind: type[R], name: str) -> R: ...

    @overload
    def find(self, kind: str, name: str) -> Record: ...

    def find(self, kind: str | type[Record], name: str) -> Record:
        """Return the record a name means; raise `PluginError` where none, two, or not the preferred plugin offer it."""
        key = (kind_name(kind), name)
        if ":".join(key) in self.settings.prefer and key not in self._chosen:
            self._check_prefer(":".join(key))
        if key in self._conflicts:
            raise self._conflicts[key].error()
        if key not in self._chosen:
            raise missing_name(*key, rows=self._rows, names=[record.name for record in self.all(key[0])])
        return self._chosen[key][1]

    @overload
    def all(self, kind: type[R]) -> list[R]: ...

    @overload
    def all(self, kind: str) -> list[Record]: ...

    def all(self, kind: str | type[Record]) -> Sequence[Record]:
        """Return every settled record of a kind, sorted by name."""
        wanted = kind_name(kind)
        return [record for (found, _), (_, record) in sorted(self._chosen.items(), key=_by_key) if found == wanted]

    def provider(self, record: Record) -> FoundPlugin:
        """Return the plugin that offers a settled record."""
        return self._chosen[(record.kind, record.name)][0]

    def plugins(self) -> list[PluginRow]:
        """Return one row a plugin, whatever became of it, sorted by name."""
        return list(self._rows)

    def conflicts(self) -> list[Conflict]:
        """Return the names that two plugins offer and nothing settles."""
        return [self._conflicts[key] for key in sorted(self._conflicts)]

    def plugin(self, name: str) -> PluginRow:
        """Return the row of a plugin, by its name, its distribution's, or a name it offers."""
        rows = [row for row in self._rows if names_any([name], row.plugin.name, row.plugin.dist)]
        rows = rows or [row for row in self._rows if any(name in names for names in row.offers.values())]
        if not rows:
            known = [row.name for row in self._rows]
            raise PluginError(
                f"no plugin named {name!r} is installed",
                next_step=f"{close_names(name, known)} Installed: {', '.join(known)}.".strip(),
            )
        return rows[0]

    def check(self) -> None:
        """Raise `PluginError` where strict mode, `require` or `prefer` forbid a run to start."""
        for row in self._rows:
            needed = names_any(self.settings.require, row.plugin.name, row.plugin.dist)
            if row.failed and (self.settings.strict or needed):
                raise failure(row, "plugins are strict" if self.settings.strict else "require in [plugins] names it")
            if needed and row.status is Status.DISABLED:
                raise failure(row, "require in [plugins] names it")
        for name in self.settings.require:
            self._check_installed(name)
        for key in self.settings.prefer:
            self._check_prefer(key)

    def _check_installed(self, name: str) -> None:
        if any(names_any([name], row.plugin.name, row.plugin.dist) for row in self._rows):
            return
        known = [row.name for row in self._rows]
        raise PluginError(
            f"plugin {name!r} is required and not installed",
            where="require in [plugins]",
            next_step=f"{close_names(name, known)} Try: pip install {name}".strip(),
        )

    def _check_prefer(self, key: str) -> None:
        kind, separator, name = key.partition(":")
        where = f'[plugins.prefer] "{key}" = "{self.settings.prefer[key]}"'
        if not separator or not name:
            raise PluginError(
                f"{key!r} is not a kind and a name", where=where, next_step='Write it as "renderer:name".'
            )
        kind = kind_name(kind)
        offering = [row.plugin for row in self._rows if name in row.offers.get(kind, [])]
        if not any(names_any([self.settings.prefer[key]], plugin.name, plugin.dist) for plugin in offering):
            raise PluginError(
                f"plugin {self.settings.prefer[key]!r} does not offer {kind} {name!r}",
                where=where,
                next_step=f"Plugins that offer it: {', '.join(str(plugin) for plugin in offering) or 'none'}.",
            )


def failure(row: PluginRow, why: str) -> PluginError:
    """Return the error for a failed plugin that the run needs, chained to its cause."""
    error = PluginError(
        f"plugin {row.name!r} ({row.plugin.dist} {row.plugin.version}) was not loaded ({row.status}), and {why}: "
        f"{row.outcome.error}",
        where=row.outcome.where or row.plugin.origin,
        next_step=row.outcome.next_step,
    )
    error.__cause__ = row.outcome.cause
    return error


def _preferred(offers: list[tuple[FoundPlugin, Record]], preferred: str | None) -> list[tuple[FoundPlugin, Record]]:
    if preferred is None:
        return offers
    return [offer for offer in offers if names_any([preferred], offer[0].name, offer[0].dist)]


def _mark(row: PluginRow, conflicts: Iterable[Conflict]) -> PluginRow:
    """Give a row the status `conflict` while one of its names is unsettled; its other names stay usable."""
    mine = [conflict for conflict in conflicts if row.plugin in conflict.plugins]
    if not mine:
        return row
    errors = [conflict.error() for conflict in mine]
    outcome = replace(
        row.outcome,
        status=Status.CONFLICT,
        error="; ".join(error.what for error in errors),
        where=errors[0].where,
        next_step=" ".join(error.next_step for error in errors),
    )
    return PluginRow(plugin=row.plugin, outcome=outcome)


def _by_key(item: tuple[tuple[str, str], tuple[FoundPlugin, Record]]) -> tuple[str, str]:
    return item[0]
