"""`prl plugins info NAME`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from prl.plugin import PluginRow, Record
from prl.plugin.probe import DEFAULT_LIMIT_S

from .loaded import probed_registry
from .output import print_json


def run(name: str, /, *, json: bool = False, timeout: float = DEFAULT_LIMIT_S) -> None:
    """Show one plugin in full: where it comes from, what it offers and needs, and the traceback of its fault.

    Of what a plugin offers, a name that it offers shows that alone.

    Parameters
    ----------
    name
        A plugin, its distribution, or a name it offers.
    json
        Print JSON.
    timeout
        Seconds each plugin may take to load.
    """
    row = probed_registry(limit_s=timeout).plugin(name)
    if json:
        print_json({**row.to_dict(), "traceback": row.outcome.traceback})
        return
    named = [record for record in row.outcome.records if record.name == name]
    is_offered = name not in (row.plugin.name, row.plugin.dist)
    _print(row, named if named and is_offered else row.outcome.records)


def _print(row: PluginRow, records: Sequence[Record]) -> None:
    plugin, outcome = row.plugin, row.outcome
    facts = (
        ("plugin", plugin.name),
        ("distribution", f"{plugin.dist} {plugin.version}"),
        ("module", plugin.value),
        ("origin", plugin.origin),
        ("requires", ", ".join(plugin.requires) or "nothing"),
        ("status", row.status.value),
        ("error", outcome.error),
        ("where", outcome.where),
        ("next", outcome.next_step),
    )
    for label, text in facts:
        if text:
            print(f"{label + ':':<14}{text}")
    for record in records:
        print(f"\n{record.kind.replace('_', ' ')} {record.name}" + (f": {record.summary}" if record.summary else ""))
        for line in _details(record):
            print(f"  {line}")
    if outcome.traceback:
        print(f"\n{outcome.traceback.rstrip()}")


def _details(record: Record) -> list[str]:
    shown = []
    for field in fields(record):
        value = getattr(record, field.name)
        is_no_limit = type(value) is int and value == field.default  # such as a largest head size of 0
        if field.name in ("name", "summary") or value in ("", ()) or is_no_limit:
            continue
        shown.append(f"{field.name}: {', '.join(value) if isinstance(value, tuple) else value}")
    return shown
