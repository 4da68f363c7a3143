"""The page on long runs names what is there: files, settings and metrics; its watcher sees what it says."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from fixtures.documents import blocks, titled
from fixtures.environments import ROOT

from prl_train.config import RLConfig
from prl_train.launch.open_run import MAY_DIFFER
from prl_train.run import folder
from prl_train.sft.resume import FIXED

PAGE = ROOT / "docs" / "how-to" / "run-for-a-week.md"
WELL = {
    "step": 3,
    "reward": 0.5,
    "rollouts": 100.0,
    "rollouts/errors": 0.0,
    "rollouts/truncated": 0.0,
    "groups/failed": 0.0,
    "samples_per_rollout": 1.0,
    "step_skipped": 0.0,
}


def test_the_settings_are_accepted() -> None:
    [block] = [one for one in blocks(PAGE) if one.language == "toml"]
    rest = {"model": {"path": "m"}, "environments": [{"name": "reverse-text"}]}
    config = RLConfig.model_validate(tomllib.loads(block.text) | rest)
    assert config.engine.ask_again_seconds == 60
    assert config.trainer.keep_checkpoints == 2


def test_everything_in_a_run_folder_is_explained() -> None:
    """What the page does not name, a user may delete."""
    named = {name.rstrip("/") for name in re.findall(r"^\| `([\w.]+/?)` \| ", PAGE.read_text(encoding="utf-8"), re.M)}
    assert {*folder._OWN_FOLDERS, *folder._OWN_FILES} <= named


def rows_of_changes() -> list[list[str]]:
    table = PAGE.read_text(encoding="utf-8").split("## What may change on a resume")[1].split("\n\n")[1]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def names_in(text: str) -> set[str]:
    return {name for name in re.findall(r"`([^`]+)`", text) if not name.startswith("prl ")}


def test_what_the_page_lets_one_change_may_change_and_nothing_else() -> None:
    """A setting that is said to be free, and stops the run after a night; or one that nobody dares to change."""
    free = [row[0].split("of `prl sft`")[0] for row in rows_of_changes() if row[1].startswith("may change")]
    assert set().union(*map(names_in, free)) == set(MAY_DIFFER)


def test_what_the_page_fixes_in_a_supervised_run_is_fixed() -> None:
    fixed = [names_in(row[0]) for row in rows_of_changes() if row[2] == "fixed"]
    assert fixed == [set(FIXED)]
    free = [row[0] for row in rows_of_changes() if row[2].startswith("may change")]
    assert not set().union(*map(names_in, free)) & set(FIXED)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, "step 3: all is well"),
        ({"samples_per_rollout": 1.5}, "samples per rollout 1.50"),
        ({"rollouts/errors": 6.0}, "6 rollouts broke"),
        ({"groups/failed": 1.0}, "1 groups failed"),
        ({"rollouts/truncated": 40.0}, "40 rollouts were cut"),
        ({"reward": 0.1}, "the reward fell below half its best"),
    ],
)
def test_the_watcher_sees_what_is_wrong(tmp_path: Path, change: dict[str, float], said: str) -> None:
    script = tmp_path / "watch.py"
    script.write_text(titled(PAGE)["watch.py"], encoding="utf-8")
    rows = [WELL | {"step": 2}, WELL | change]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    done = subprocess.run([sys.executable, str(script), str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [said], done.stderr
    assert done.returncode == bool(change)
