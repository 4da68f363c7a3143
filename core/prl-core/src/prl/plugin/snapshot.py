"""What every process of a run must agree on: distributions, versions and offered names, with one hash."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prl.types import PluginError

from .registry import Registry


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The plugins of one process; `plugins` are rows of name, distribution, version and offered names by kind."""

    plugins: tuple[dict[str, Any], ...]
    prefer: dict[str, str]

    @property
    def digest(self) -> str:
        """The sha256 of the content: equal in every process of a run."""
        text = json.dumps([self.plugins, self.prefer], sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode("utf-8")).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """Return the content of `plugins.json`."""
        return {"digest": self.digest, "prefer": self.prefer, "plugins": list(self.plugins)}


def take_snapshot(registry: Registry) -> Snapshot:
    """Return what this process loaded, and how it settles names that two plugins offer."""
    rows = [
        {
            "name": row.name,
            "distribution": row.plugin.dist,
            "version": row.plugin.version,
            "offers": {kind: list(names) for kind, names in row.offers.items()},
        }
        for row in registry.plugins()
        if row.outcome.records
    ]
    return Snapshot(tuple(rows), dict(sorted(registry.settings.prefer.items())))


def save_snapshot(snapshot: Snapshot, path: Path) -> None:
    """Write `plugins.json`, under a temporary name first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(snapshot.to_dict(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    temporary.replace(path)


def read_snapshot(path: Path) -> Snapshot:
    """Read a run's `plugins.json`; raise `PluginError` where it is absent, damaged or was edited."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        snapshot = Snapshot(tuple(data["plugins"]), dict(data["prefer"]))
        digest = data["digest"]
    except (OSError, ValueError, KeyError, TypeError) as cause:
        raise PluginError(
            f"the run's plugin snapshot cannot be read: {type(cause).__name__}: {cause}",
            where=str(path),
            next_step="Start the run's first process (prl rl or prl orchestrator), which writes it.",
        ) from cause
    if digest != snapshot.digest:
        raise PluginError(
            "the run's plugin snapshot does not match its own hash",
            where=str(path),
            next_step="Restore the file, or start a new run folder.",
        )
    return snapshot


def compare_snapshots(saved: Snapshot, mine: Snapshot, *, where: str = "") -> None:
    """Refuse to start where this process's plugins differ from the run's; the error lists every difference."""
    if saved.digest == mine.digest:
        return
    before, now = _by_name(saved), _by_name(mine)
    lines = [
        f"{name}: the run has {_told(before.get(name))}, this process {_told(now.get(name))}"
        for name in _changed(before, now)
    ]
    if saved.prefer != mine.prefer:
        lines.append(f"prefer: the run has {saved.prefer}, this process {mine.prefer}")
    raise PluginError(
        "this process has other plugins than the run: " + "; ".join(lines),
        where=where,
        next_step="Install the same versions everywhere (prl plugins freeze prints them), or start a new run folder.",
    )


def _by_name(snapshot: Snapshot) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in snapshot.plugins}


def _changed(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    return sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))


def _told(row: dict[str, Any] | None) -> str:
    if row is None:
        return "nothing"
    names = ", ".join(f"{kind}:{name}" for kind, names in row["offers"].items() for name in names)
    return f"{row['distribution']} {row['version']} ({names})"
