"""Generate the table of first-party families from the packages of a workspace.

Run `python -m prl.plugin.generate_known --write FOLDER...`, each folder a distribution that is installed.
"""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prl.types import PluginError

from .discovery import GROUP, discover
from .known import TABLE
from .loader import load_plugin


def generate(folders: Sequence[Path]) -> dict[str, Any]:
    """Build the table from distributions' folders; each must be installed, and must load."""
    installed = {plugin.name: plugin for plugin in discover()}
    table: dict[str, Any] = {}
    for folder in sorted(folders):
        project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        for name in project.get("entry-points", {}).get(GROUP, {}):
            if name not in installed:
                raise PluginError(
                    f"plugin {name!r} is not installed", where=str(folder), next_step=f"pip install -e {folder}"
                )
            outcome = load_plugin(installed[name])
            if outcome.error:
                raise PluginError(outcome.error, where=outcome.where, next_step=outcome.next_step) from outcome.cause
            for record in outcome.records:
                facts = {
                    key: sorted(getattr(record, key)) for key in ("models", "templates") if getattr(record, key, ())
                }
                table.setdefault(project["name"], {}).setdefault(record.kind, {})[record.name] = facts
    return table


def as_text(table: Mapping[str, Any]) -> str:
    """Return the table as the file's text."""
    return json.dumps(table, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def main(arguments: Sequence[str]) -> int:
    """Print the table of the given folders, or with `--write` put it into the shipped file."""
    text = as_text(generate([Path(argument) for argument in arguments if argument != "--write"]))
    if "--write" in arguments:
        TABLE.write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
