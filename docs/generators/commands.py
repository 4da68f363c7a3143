"""docs/reference/commands.md: what each command's --help prints."""

from __future__ import annotations

import contextlib
import io
import os
from pathlib import Path
from unittest import mock

from generators.markdown import code, table
from prl.cli.main import main
from prl.plugin import CommandEntry, PluginRow

_INTRO = """# Commands

Every command takes `--debug` (print tracebacks) and `--strict-plugins` (stop on any broken plugin). Errors are told in
three parts on stderr: what, where, next. The exit code is 0, 1 for an error, 2 for a wrong command line.

"""
_WIDTH = "100"


def page(rows: dict[Path, PluginRow]) -> str:
    """Return the page: an overview, then each command's own help."""
    entries = [
        (record, row.plugin.dist)
        for row in rows.values()
        for record in row.outcome.records
        if isinstance(record, CommandEntry)
    ]
    overview = [(_link(one.name), code(dist), one.summary) for one, dist in entries]
    sections = [f"## prl {one.name}\n\n```text\n{_help(one.name)}\n```\n" for one, _ in entries]
    return _INTRO + table(("command", "from", "what it does"), overview) + "\n" + "\n".join(sections)


def _link(name: str) -> str:
    return f"[`prl {name}`](#prl-{name.replace(' ', '-')})"


def _help(name: str) -> str:
    """Return what `prl NAME --help` prints."""
    printed = io.StringIO()
    with mock.patch.dict(os.environ, {"COLUMNS": _WIDTH, "NO_COLOR": "1"}), contextlib.redirect_stdout(printed):
        code_ = main([*name.split(), "--help"])
    if code_ != 0:
        raise SystemExit(f"prl {name} --help exits with {code_}")
    return "\n".join(line.rstrip() for line in printed.getvalue().strip("\n").splitlines())
