"""Print for people and for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any


def print_json(data: Any) -> None:
    """Print data as indented JSON."""
    print(json.dumps(data, indent=2, ensure_ascii=False))


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print columns as wide as their content, never cut: paths and errors stay whole also in a pipe."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    for row in (header, *rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def paint(text: str, style: str) -> str:
    """Colour a text for a terminal with an SGR code; plain where the output is no terminal."""
    return f"\033[{style}m{text}\033[0m" if sys.stdout.isatty() else text
