"""What runs beside training in a real run: evaluations, filters, and the bounds on stale rollouts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from prl.config import load_config
from prl_train.config import RLConfig
from prl_train.launch.processes import run_everything
from prl_train.run import RunFolder
from prl_train.run.metrics import is_evaluation, read_metrics

pytestmark = pytest.mark.heavy

EXTRA = """
[[filters]]
name = "difficulty"
options = { high = 0.9, solved_in_a_row = 1 }

[[filters]]
name = "length"
options = { truncated = true }

[[evaluations]]
name = "held-out"
environment = "number-guessing"
options = { low = 1, high = 3, turns = 2 }
every = 3
examples = 3
samples_per_example = 4
sampling = { temperature = 0.7 }
"""


def test_filters_evaluations_and_bounds_work_together_and_survive_a_resume(
    tmp_path: Path, quickstart: Path, short: tuple[str, ...]
) -> None:
    path = tmp_path / "run.toml"
    path.write_text(quickstart.read_text() + EXTRA)
    overrides = [*short, f"run.directory={tmp_path / 'run'}", "warmup.steps=150", "run.report=false"]
    overrides += ["orchestrator.max_async_level=2", "orchestrator.max_off_policy_steps=1"]
    for steps, existing in ((3, "error"), (7, "resume")):
        wanted = [*overrides, f"orchestrator.steps={steps}", f"run.existing={existing}"]
        run_everything(load_config(RLConfig, path, wanted))
    folder = RunFolder(tmp_path / "run")
    rows = read_metrics(folder.metrics)
    steps = [int(row["step"]) for row in rows if not is_evaluation(row)]
    assert steps == list(range(7))
    exams = {int(row["step"]): row for row in rows if "eval/held-out/avg@4" in row}
    assert sorted(exams)[0] == 0
    assert sorted(exams)[-1] == 7
    assert len([row for row in rows if "eval/held-out/avg@4" in row]) == len(exams), "an evaluation was repeated"
    assert exams[7]["eval/held-out/weights/oldest"] == 7.0
    for row in exams.values():
        assert 0.0 <= row["eval/held-out/avg@4"] <= row["eval/held-out/pass@4"] <= 1.0
        assert row["eval/held-out/rollouts"] == 12.0
    for step in folder.rollout_steps():
        records = [json.loads(line) for line in folder.rollout_path(step).read_text().splitlines()]
        kept = [record for record in records if record["dropped"] is None]
        dropped = [record["dropped"] for record in records if record["dropped"] not in (None, "group")]
        means = [group_mean(records, record["group_id"]) for record in kept]
        assert all(mean <= 0.9 for mean in means)
        assert set(dropped) <= {"difficulty/too_easy", "difficulty/equal_rewards", "length/truncated"}
        assert all(step - version <= 2 for record in kept for version in record["weight_versions"])


def group_mean(records: list[dict[str, object]], group: str) -> float:
    rewards = [float(str(record["reward"])) for record in records if record["group_id"] == group]
    return sum(rewards) / len(rewards)
