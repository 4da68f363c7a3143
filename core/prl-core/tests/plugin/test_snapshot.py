"""Every process of a run has the same plugins, or does not start."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from prl.plugin import Registry, compare_snapshots, read_snapshot, save_snapshot, take_snapshot
from prl.testing.fake_dist import renderer_plugin, write_fake_dist
from prl.types import PluginError

Build = Callable[..., Registry]


def test_a_snapshot_survives_the_run_folder(site: Path, build: Build, tmp_path: Path) -> None:
    """A process that is the same as the run's first is refused."""
    write_fake_dist(site, "acme", renderer_plugin("tin"))
    mine = take_snapshot(build())
    save_snapshot(mine, tmp_path / "run" / "plugins.json")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["plugins.json"]
    compare_snapshots(read_snapshot(tmp_path / "run" / "plugins.json"), mine)
    assert mine.plugins == (
        {"name": "acme", "distribution": "acme", "version": "1.0", "offers": {"renderer": ["tin"]}},
    )


def test_another_version_or_offer_refuses_to_start(site: Path, build: Build) -> None:
    """The trainer runs another version of the renderer than the orchestrator, and the ids drift apart."""
    write_fake_dist(site, "acme", renderer_plugin("tin"))
    write_fake_dist(site, "gone", renderer_plugin("zinc"))
    saved = take_snapshot(build())
    shutil.rmtree(site / "acme-1.0.dist-info")
    write_fake_dist(site, "acme", renderer_plugin("tin"), version="1.1")
    with pytest.raises(PluginError) as caught:
        compare_snapshots(saved, take_snapshot(build(disable=("gone",))), where="run/plugins.json")
    assert caught.value.what == (
        "this process has other plugins than the run: "
        "acme: the run has acme 1.0 (renderer:tin), this process acme 1.1 (renderer:tin); "
        "gone: the run has gone 1.0 (renderer:zinc), this process nothing"
    )
    assert caught.value.where == "run/plugins.json"


def test_another_preference_refuses_to_start(site: Path, build: Build) -> None:
    """Two processes settle one conflict in two ways."""
    write_fake_dist(site, "acme", renderer_plugin("tin"))
    write_fake_dist(site, "rival", renderer_plugin("tin"))
    saved = take_snapshot(build(prefer={"renderer:tin": "acme"}))
    with pytest.raises(PluginError, match="prefer: the run has"):
        compare_snapshots(saved, take_snapshot(build(prefer={"renderer:tin": "rival"})))


@pytest.mark.parametrize("text", ["", "{}", '{"digest": "x", "prefer": {}, "plugins": []}', "[1]"])
def test_a_damaged_snapshot_is_an_error(tmp_path: Path, text: str) -> None:
    """A half-written file is taken for an empty list of plugins."""
    path = tmp_path / "plugins.json"
    path.write_text(text)
    with pytest.raises(PluginError):
        read_snapshot(path)
    with pytest.raises(PluginError):
        read_snapshot(tmp_path / "absent.json")


def test_the_digest_is_part_of_the_file(site: Path, build: Build, tmp_path: Path) -> None:
    """Nobody can compare two run folders at a glance."""
    write_fake_dist(site, "acme", renderer_plugin("tin"))
    snapshot = take_snapshot(build())
    save_snapshot(snapshot, tmp_path / "plugins.json")
    assert json.loads((tmp_path / "plugins.json").read_text())["digest"] == snapshot.digest
    assert len(snapshot.digest) == 64
