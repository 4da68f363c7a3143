"""Training through agents that only know an OpenAI address: exact tokens, and rewards that rise."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from prl.config import load_config
from prl.testing.fake_dist import active_site, write_fake_dist
from prl_train.config import RLConfig
from prl_train.launch.processes import run_everything
from prl_train.run import RunFolder
from prl_train.run.metrics import read_metrics

from .agents import MODULE, PLUGIN, write_command_tasks

pytestmark = pytest.mark.heavy
pytest.importorskip("openai")

CONFIG = """
renderer = "qwen3"
sinks = []
renderer_options = {{ enable_thinking = false }}
[run]
directory = {directory}
report = false
[model]
path = {model}
[engine.options]
dtype = "float32"
threads = 1
[[environments]]
name = {name}
options = {options}
[sampling]
max_tokens = 24
[orchestrator]
steps = {steps}
group_size = {size}
groups_per_step = 3
max_async_level = 0
[trainer]
dtype = "float32"
seq_len = 1024
lr = 1e-3
eps = 1e-5
warmup_steps = 5
threads = 1
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that knows the game's format, but plays it badly."""
    directory = tmp_path_factory.mktemp("model") / "run"
    quickstart = Path(__file__).parents[2] / "docs" / "examples" / "quickstart.toml"
    short = ("orchestrator.steps=1", "orchestrator.group_size=2", "warmup.steps=200", "sinks=[]", "run.report=false")
    run_everything(load_config(RLConfig, quickstart, [*short, f"run.directory={directory}"]))
    newest = RunFolder(directory).latest_weights()
    assert newest is not None
    return Path(newest[1])


def configure(tmp_path: Path, model: Path, name: str, *, steps: int, size: int, options: str = "{}") -> RLConfig:
    path = tmp_path / "run.toml"
    quoted = {"directory": json.dumps(str(tmp_path / "run")), "model": json.dumps(str(model)), "name": json.dumps(name)}
    path.write_text(CONFIG.format(**quoted, options=options, steps=steps, size=size))
    return load_config(RLConfig, path, [])


def acme(tmp_path: Path, *, rewrites: bool = False) -> Path:
    """Install a plugin whose environment is an agent in Python."""
    write_fake_dist(tmp_path, "acme-agent-dist", PLUGIN)
    source = MODULE.replace("rewrites = False", f"rewrites = {rewrites}")
    (tmp_path / "acme_agent.py").write_text(source)
    return tmp_path


def rows_of(tmp_path: Path) -> list[dict[str, float]]:
    return read_metrics(RunFolder(tmp_path / "run").metrics)


def test_rewards_rise_through_an_agent_and_no_token_is_lost(tmp_path: Path, model: Path) -> None:
    with active_site(acme(tmp_path / "site")):
        run_everything(configure(tmp_path, model, "acme-agent", steps=18, size=16))
    rows = rows_of(tmp_path)
    assert len(rows) == 18
    assert {(row["breaks"], row["samples_per_rollout"], row["rollouts/errors"]) for row in rows} == {(0.0, 1.0, 0.0)}
    assert max(row["max_logprob_diff"] for row in rows if not row["step_skipped"]) < 1e-4
    assert max(row["turns_per_rollout"] for row in rows) > 1.0
    start, end = fmean(row["reward"] for row in rows[:4]), fmean(row["reward"] for row in rows[-8:])
    assert end > start + 0.05, [row["reward"] for row in rows]


def test_an_agent_that_rewrites_history_shows_in_the_breaks(tmp_path: Path, model: Path) -> None:
    with active_site(acme(tmp_path / "site", rewrites=True)):
        run_everything(configure(tmp_path, model, "acme-agent", steps=1, size=8))
    (row,) = rows_of(tmp_path)
    assert row["env/acme-agent/breaks/history_rewritten"] > 0
    assert row["samples_per_rollout"] > 1.0


def test_a_command_with_the_openai_sdk_is_trained_on_exactly_what_was_sampled(tmp_path: Path, model: Path) -> None:
    script, tasks = write_command_tasks(tmp_path)
    options = f"{{ command = {json.dumps([sys.executable, str(script)])}, tasks = {json.dumps(str(tasks))} }}"
    run_everything(configure(tmp_path, model, "command-agent", steps=1, size=3, options=options))
    (row,) = rows_of(tmp_path)
    assert (row["breaks"], row["samples_per_rollout"], row["rollouts"], row["rollouts/errors"]) == (0.0, 1.0, 9.0, 0.0)
    assert row["env/command-agent/agent_failed"] == 0.0
    assert row.get("max_logprob_diff", 0.0) < 1e-4
    records = logged(RunFolder(tmp_path / "run").rollout_path(0))
    for record in records:
        assert record["reward"] == float("correct" in record["output"])
        (sample,) = record["samples"]
        owners = {owner for _, _, owner in sample["spans"]}
        assert set(range(len(record["messages"]))) <= owners, "a message of the agent's has no tokens"


def logged(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
