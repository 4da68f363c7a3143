"""The life of one plugin: its status, what it offers, and what went wrong."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from .discovery import FoundPlugin
from .records import Record


class Status(StrEnum):
    """How far a plugin came."""

    FOUND = "found"
    DISABLED = "disabled"
    INCOMPATIBLE = "incompatible"
    CONFLICT = "conflict"
    ERROR = "error"
    LOADED = "loaded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Where a plugin's life ended, in three parts, and what it offers.

    `claimed` are the (kind, name) pairs it had offered before it failed; they are not available. `cause` is the
    exception, where it was raised in this process.
    """

    status: Status
    error: str = ""
    where: str = ""
    next_step: str = ""
    traceback: str = ""
    records: tuple[Record, ...] = ()
    claimed: tuple[tuple[str, str], ...] = ()
    cause: BaseException | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginRow:
    """One line of `prl plugins list`."""

    plugin: FoundPlugin
    outcome: Outcome

    @property
    def name(self) -> str:
        """The plugin's name: its entry point's."""
        return self.plugin.name

    @property
    def status(self) -> Status:
        """How far it came."""
        return self.outcome.status

    @property
    def failed(self) -> bool:
        """Whether it is installed and allowed but not whole."""
        return self.status in (Status.ERROR, Status.INCOMPATIBLE, Status.CONFLICT)

    @property
    def offers(self) -> dict[str, list[str]]:
        """Offered names by kind, sorted."""
        found: dict[str, list[str]] = {}
        for record in sorted(self.outcome.records, key=lambda record: (record.kind, record.name)):
            found.setdefault(record.kind, []).append(record.name)
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return the row as JSON-ready data."""
        plugin, outcome = self.plugin, self.outcome
        return {
            "name": plugin.name,
            "distribution": plugin.dist,
            "version": plugin.version,
            "module": plugin.value,
            "origin": plugin.origin,
            "requires": list(plugin.requires),
            "status": outcome.status.value,
            "offers": self.offers,
            "records": [{"kind": record.kind, **asdict(record)} for record in outcome.records],
            "error": outcome.error,
            "where": outcome.where,
            "next_step": outcome.next_step,
        }
