"""Fake installed distributions for the tests of the registry."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from prl.plugin import PluginSettings, Registry, discover
from prl.plugin.loader import load_plugins
from prl.testing.fake_dist import active_site


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for variable in ("PRL_PLUGINS", "PRL_DISABLE_PLUGINS", "PRL_STRICT_PLUGINS"):
        monkeypatch.delenv(variable, raising=False)
    with active_site(tmp_path / "site") as path:
        yield path


@pytest.fixture
def build(site: Path) -> Callable[..., Registry]:
    """Build a registry of the fake distributions alone, whatever else is installed."""

    def build(**settings: object) -> Registry:
        found = [plugin for plugin in discover() if plugin.origin == str(site)]
        return Registry.build(found, PluginSettings(**settings), load_plugins)  # type: ignore[arg-type]

    return build
