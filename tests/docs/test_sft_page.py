"""The page on fine-tuning: its files are read as it says."""

from __future__ import annotations

import json
import tomllib

from fixtures.documents import titled
from fixtures.environments import ROOT

from prl_train.config import RLConfig
from prl_train.data import read_row
from prl_train.sft import SftConfig

PAGE = ROOT / "docs" / "how-to" / "supervised-fine-tuning.md"


def test_every_config_of_the_page_is_accepted() -> None:
    files = titled(PAGE)
    assert SftConfig.model_validate(tomllib.loads(files["sft.toml"])).data.samples == "auto"
    mixed = SftConfig.model_validate(tomllib.loads(files["mixed.toml"]))
    assert [source.weight for source in mixed.data.all_sources()] == [1.0, 0.25]
    RLConfig.model_validate(tomllib.loads(files["rl-after-sft.toml"]))


def test_the_pages_rows_train_the_turns_it_says() -> None:
    rows = [read_row(json.loads(line)) for line in titled(PAGE)["conversations.jsonl"].splitlines()]
    assert [row.targets(("assistant",)) for row in rows] == [[1], [3], [1]]


def test_the_table_names_every_way_to_make_samples() -> None:
    from prl_train.data.sft_samples import _MODES

    text = PAGE.read_text(encoding="utf-8")
    assert all(f'`"{mode}"`' in text for mode in _MODES)
