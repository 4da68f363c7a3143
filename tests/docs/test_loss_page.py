"""The page on losses: its commands print what it says, and its table and configs are true."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from fixtures.documents import Reader, titled
from fixtures.environments import ROOT, linked_environment, workspace_distributions

from prl.plugin import LossEntry, get_registry

pytest.importorskip("torch")
PAGE = ROOT / "docs" / "how-to" / "choose-or-add-a-loss.md"
FIRST_PARTY = tuple(name for name in workspace_distributions() if not name.startswith("prl-renderer"))


def test_a_loss_of_ones_own_passes_the_kit(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    following = Reader(linked_environment(tmp_path / "environment", FIRST_PARTY), home)
    assert following.follow(PAGE) == 4


def test_the_table_says_what_each_loss_reads() -> None:
    rows = [line.split("|") for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    told = {row[1].strip().strip("`"): row[3] for row in rows}
    offered = {record.name: record for record in get_registry().all(LossEntry)}
    assert told.keys() == offered.keys()
    for name, record in offered.items():
        assert all(stream in told[name] for stream in record.streams)


def test_the_configs_of_the_page_are_accepted() -> None:
    from prl_train.algo import resolve_loss
    from prl_train.trainer import TrainerConfig

    section = tomllib.loads(titled(PAGE)["loss.toml"])["trainer"]
    config = TrainerConfig.model_validate(section).loss
    assert resolve_loss(config).unit == "sequences"
    own = TrainerConfig.model_validate(tomllib.loads(titled(PAGE)["better.toml"])["trainer"]).loss
    assert (own.name, own.values()) == ("better", {"above": 0.25})
