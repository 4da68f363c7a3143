"""What the workspace's own distributions offer."""

from __future__ import annotations

import tomllib
from pathlib import Path

from generators.markdown import code
from generators.markdown import table as markdown_table
from prl.plugin import PluginRow, configure_registry, reset_registry
from prl.plugin.settings import PluginSettings

FOLDERS = ("core", "plugins")


def workspace_rows(root: Path) -> dict[Path, PluginRow]:
    """Return the plugins of the distributions under core/ and plugins/, by folder; all must be loaded."""
    projects = {}
    for path in sorted(path for folder in FOLDERS for path in root.glob(f"{folder}/*/pyproject.toml")):
        projects[tomllib.loads(path.read_text(encoding="utf-8"))["project"]["name"]] = path.parent
    reset_registry()
    found = {row.plugin.dist: row for row in configure_registry(PluginSettings()).plugins()}
    reset_registry()
    absent = sorted(name for name in projects if name not in found or not found[name].outcome.records)
    if absent:
        raise SystemExit(f"not installed or not loaded: {', '.join(absent)}; run: make docs, which installs them")
    return {folder: found[name] for name, folder in projects.items()}


def table(rows: dict[Path, PluginRow]) -> str:
    """Return the README's plugin list: one line a distribution, what it offers by kind."""
    lines = []
    for folder, row in rows.items():
        offers = [f"{kind.replace('_', ' ')}: {', '.join(map(code, names))}" for kind, names in row.offers.items()]
        place = f"{folder.parent.name}/{folder.name}"
        lines.append((f"[{row.plugin.dist}]({place})", "; ".join(offers)))
    return markdown_table(("distribution", "offers"), lines)
