"""The table of first-party families, generated from the packages: what to install for a name that is not there.

Regenerate it with `python -m prl.plugin.generate_known --write FOLDER...`.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

TABLE = Path(__file__).with_name("known_plugins.json")

Table = Mapping[str, Mapping[str, Mapping[str, Mapping[str, Sequence[str]]]]]
"""Distribution -> kind -> name -> {"models": exact ids, "templates": sha256 sums}."""


@functools.cache
def known_table() -> Table:
    """Return the shipped table."""
    table: Table = json.loads(TABLE.read_text(encoding="utf-8"))
    return table


def known_providers(kind: str, name: str) -> list[str]:
    """Return the first-party distributions that offer a name."""
    return [dist for dist, kinds in known_table().items() if name in kinds.get(kind, {})]


def is_first_party(dist: str, kind: str, name: str) -> bool:
    """Say whether the table has a name as this distribution's."""
    return name in known_table().get(dist, {}).get(kind, {})


def known_renderers(*, model: str | None, template: str | None) -> list[str]:
    """Return the first-party renderers for an exact model id or the sha256 of a chat template."""
    return [
        name
        for kinds in known_table().values()
        for name, facts in kinds.get("renderer", {}).items()
        if (model and model in facts.get("models", ())) or (template and template in facts.get("templates", ()))
    ]
