"""The table of first-party families is what the packages say, never typed by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from prl.plugin import discover
from prl.plugin.generate_known import as_text, generate
from prl.plugin.known import TABLE, known_providers, known_renderers, known_table

WORKSPACE = Path(__file__).resolve().parents[4]


def first_party() -> list[Path]:
    return [
        path.parent
        for path in [*WORKSPACE.glob("plugins/*/pyproject.toml"), *WORKSPACE.glob("core/prl-train/pyproject.toml")]
    ]


def test_the_shipped_table_is_current() -> None:
    """A missing family is not known to core, or an error advises a package that no longer offers it."""
    folders = first_party()
    installed = {plugin.dist for plugin in discover()}
    if not folders or any(folder.name not in installed for folder in folders):
        pytest.skip("needs the whole workspace, installed")
    advice = "run: python -m prl.plugin.generate_known --write plugins/* core/prl-train"
    assert TABLE.read_text(encoding="utf-8") == as_text(generate(folders)), advice


def test_the_table_answers_for_names_and_models() -> None:
    """The advice to install is never given."""
    table = known_table()
    assert "prl-renderer-qwen" in table
    assert known_providers("renderer", "qwen3") == ["prl-renderer-qwen"]
    assert known_providers("renderer", "no-such") == []
    assert known_renderers(model="Qwen/Qwen3-8B", template=None) == ["qwen3"]
    assert known_renderers(model=None, template=None) == []
