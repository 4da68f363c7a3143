"""`prl --help`: the core commands, and those that plugins offer, found without importing a plugin here."""

from __future__ import annotations

from collections.abc import Sequence

from prl import __version__
from prl.builtin import prl_commands
from prl.plugin import CommandEntry

from .loaded import probed_registry

_LIMIT_S = 3.0


def print_help() -> None:
    """Print usage and all commands."""
    print_commands(
        f"prl {__version__}\nUsage: prl COMMAND [ARGUMENTS]   (prl COMMAND --help tells more)", prl_commands()
    )
    registry = probed_registry(limit_s=_LIMIT_S)
    own = {entry.name for entry in prl_commands()}
    offered = [entry for entry in registry.all(CommandEntry) if entry.name not in own]
    if offered:
        print_commands("\nCommands of plugins:", offered)
    failed = [row.name for row in registry.plugins() if row.failed]
    if failed:
        print(f"\nNot loaded, see `prl plugins list`: {', '.join(failed)}")
    print("\nEvery command takes --debug (tracebacks) and --strict-plugins (stop on any broken plugin).")


def print_commands(title: str, entries: Sequence[CommandEntry]) -> None:
    """Print commands with their summaries."""
    width = max(len(entry.name) for entry in entries)
    print(title)
    for entry in entries:
        print(f"  {entry.name.ljust(width)}  {entry.summary}".rstrip())
