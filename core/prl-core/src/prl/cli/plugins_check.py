"""`prl plugins check NAME`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from prl.plugin import Record, get_registry
from prl.plugin.registry import failure
from prl.types import PluginError

from .output import print_json

if TYPE_CHECKING:
    from rich.table import Table

    from prl.tokenizer import Tokenizer

_WORDS = {"pass": "passed", "fail": "failed", "quirk": "declared quirks", "skip": "skipped"}
_PIPE_WIDTH = 160
_STYLES = {"pass": "green", "fail": "bold red", "skip": "dim", "quirk": "yellow"}


@dataclass(frozen=True, slots=True)
class Row:
    """One check of one offered name."""

    kind: str
    name: str
    check: str
    verdict: str
    finding: str
    claim: str


def run(name: str, /, *, tokenizer: Path | None = None, json: bool = False, verbose: bool = False) -> int:
    """Run the conformance kit on an installed plugin; exit with 1 where a check fails.

    Parameters
    ----------
    name
        A plugin, its distribution, or a name it offers (then only that name is checked).
    tokenizer
        Directory with a tokenizer.json to render on, instead of a byte tokenizer made of the control tokens.
    json
        Print JSON.
    verbose
        Also show the checks that passed, and why others were skipped.
    """
    from prl.tokenizer import load_tokenizer

    given = None if tokenizer is None else load_tokenizer(tokenizer)
    rows = [row for record in _records(name) for row in _check(record, given)]
    if json:
        print_json([{field: getattr(row, field) for field in Row.__slots__} for row in rows])
    else:
        _print(rows, verbose=verbose)
    return 1 if any(row.verdict == "fail" for row in rows) else 0


def _records(name: str) -> Sequence[Record]:
    """Return what a plugin offers, or the one record that a name means."""
    registry = get_registry()
    row = registry.plugin(name)
    if row.failed and not row.outcome.records:
        raise failure(row, "it cannot be checked")
    named = [record for record in row.outcome.records if record.name == name]
    whole = name in (row.plugin.name, row.plugin.dist)
    records = row.outcome.records if whole or not named else named
    if not records:
        raise PluginError(
            f"plugin {row.name!r} offers nothing to check",
            where=row.plugin.origin,
            next_step="Offer a record from one of its hooks; `prl plugins info` shows what it offers.",
        )
    return sorted(records, key=lambda record: (record.kind, record.name))


def _check(record: Record, given: Tokenizer | None) -> list[Row]:
    from prl.testing.subjects import check_record

    return [
        Row(record.kind, record.name, result.check.name, result.verdict.value, result.finding, result.check.claim)
        for result in check_record(record, given)
    ]


def _print(rows: Sequence[Row], *, verbose: bool) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console() if sys.stdout.isatty() else Console(width=_PIPE_WIDTH)
    for kind, name in dict.fromkeys((row.kind, row.name) for row in rows):
        mine = [row for row in rows if (row.kind, row.name) == (kind, name)]
        verdicts = [row.verdict for row in mine]
        counts = ", ".join(f"{verdicts.count(one)} {word}" for one, word in _WORDS.items() if one in verdicts)
        console.print(Text(f"{kind.replace('_', ' ')} {name}: {counts}", "bold"))
        shown = [row for row in mine if verbose or row.verdict in ("fail", "quirk")]
        if shown:
            console.print(_table(shown))


def _table(rows: Sequence[Row]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("CHECK", no_wrap=True)
    table.add_column("RESULT", no_wrap=True)
    table.add_column("FIRST FINDING", overflow="fold")
    for row in rows:
        told = f"{row.finding}\nmatters because: {row.claim}" if row.verdict == "fail" else row.finding
        table.add_row(Text(f"  {row.check}"), Text(row.verdict, _STYLES[row.verdict]), Text(told))
    return table
