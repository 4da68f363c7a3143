"""Supervised training, then reinforcement learning from its weights: what the first learnt, the second begins with."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from prl.config import load_config
from prl_train.config import RLConfig
from prl_train.launch.parts import check_names
from prl_train.launch.scratch import make_scratch_model
from prl_train.run.metrics import read_metrics

QUICKSTART = Path(__file__).parents[2] / "docs" / "examples" / "quickstart.toml"
GAMES = 4000

SFT = """
model = "{model}"
renderer = "qwen3"
directory = "{directory}"
steps = 220
rows_per_step = 1

[renderer_options]
enable_thinking = false

[data]
path = "{data}"

[eval]
path = "{held_out}"
every = 55

[trainer]
seq_len = 1024
lr = 6e-3
schedule = "cosine"
total_steps = 220
min_lr_ratio = 0.1
warmup_steps = 20
"""


def base_model(directory: Path) -> tuple[Path, list[dict[str, Any]]]:
    """Make the quickstart's model from scratch, untrained, and rows of mediocre games."""
    config = load_config(RLConfig, QUICKSTART)
    schedule = check_names(config)
    assert config.model.scratch is not None
    model = make_scratch_model(config, config.model.scratch, schedule, directory / "base")
    environment: Any = schedule.environments[0].environment
    tools = list(environment.tools)
    return model, [{"messages": environment.demonstration(index), "tools": tools} for index in range(GAMES)]


@pytest.mark.heavy
def test_a_model_of_prl_sft_starts_a_run_of_prl_rl_and_learns_on(
    tmp_path: Path, prl: Callable[..., Any], on_model: Callable[[Path], Path]
) -> None:
    model, rows = base_model(tmp_path)
    for name, some in (("games.jsonl", rows[200:]), ("held_out.jsonl", rows[:200])):
        (tmp_path / name).write_text("\n".join(json.dumps(row) for row in some), encoding="utf-8")
    (tmp_path / "sft.toml").write_text(
        SFT.format(
            model=model,
            directory=tmp_path / "sft",
            data=tmp_path / "games.jsonl",
            held_out=tmp_path / "held_out.jsonl",
        ),
        encoding="utf-8",
    )
    told = prl("sft", "-c", str(tmp_path / "sft.toml"))
    assert told.code == 0, told.stderr
    losses = [json.loads(line) for line in (tmp_path / "sft" / "metrics.jsonl").read_text().splitlines()]
    held_out = [row["eval/loss"] for row in losses if "eval/loss" in row]
    assert len(held_out) == 4
    assert held_out[-1] < 0.5 * losses[0]["loss"]

    [weights] = (tmp_path / "sft" / "weights").iterdir()
    told = prl(
        "rl",
        "-c",
        str(on_model(weights)),
        f"run.directory={tmp_path / 'rl'}",
        "warmup.steps=0",
        "orchestrator.steps=25",
        "sinks=[]",
    )
    assert told.code == 0, told.stderr
    rewards = [row["reward"] for row in read_metrics(tmp_path / "rl" / "metrics.jsonl")]
    assert 0.4 < fmean(rewards[:3]) < 0.85, "the games it saw were mediocre, and it plays like them"
    assert fmean(rewards[-3:]) > fmean(rewards[:3]) + 0.08
