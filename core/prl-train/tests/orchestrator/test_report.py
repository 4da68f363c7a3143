"""The report: one file, nothing fetched, nothing that a sampled text can break."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from prl_train.commands.told import outcome_lines
from prl_train.config import RLConfig
from prl_train.report import build_report, summarise, write_report
from prl_train.run import RunFolder
from prl_train.run.files import write_text
from prl_train.run.metrics import append_metrics


class Words:
    """A tokenizer of few tokens."""

    def decode(self, ids: list[int]) -> str:
        return "".join({1: "<|im_start|>", 2: "user\n", 3: "</script><b>", 4: "fine"}[token] for token in ids)


def record(reward: float, trajectory: str) -> dict[str, Any]:
    return {
        "trajectory_id": trajectory,
        "group_id": "g",
        "environment": "scripted",
        "example_id": "e",
        "reward": reward,
        "advantage": reward - 0.5,
        "stop_reason": "done",
        "is_truncated": False,
        "error": None,
        "metrics": {},
        "weight_versions": [0],
        "breaks": [],
        "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}],
        "samples": [
            {
                "prompt_ids": [1, 2],
                "completion_ids": [3, 4],
                "mask": [1, 0],
                "logprobs": [-0.5, 0.0],
                "spans": [[0, 1, -1], [1, 2, 0], [2, 4, 1]],
            }
        ],
    }


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    run = RunFolder(tmp_path / "demo")
    for step in range(8):
        values = {"reward": step / 10, "loss": 0.1, "breaks": 0.0, "samples_per_rollout": 1.0, "max_logprob_diff": 1e-6}
        append_metrics(run.metrics, step, values)
        lines = [json.dumps(record(reward, f"{step}-{reward}")) for reward in (0.0, 0.0, 1.0)]
        write_text(run.rollout_path(step), "\n".join(lines) + "\n")
    return run


def embedded(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return dict(json.loads(found[1]))


def test_the_page_is_whole_in_itself(folder: RunFolder) -> None:
    page = write_report(folder, Words()).read_text()  # type: ignore[arg-type]
    assert "/*STYLE*/" not in page
    assert "/*SCRIPT*/" not in page
    links = set(re.findall(r"https?://[^\s\"'`)]+", page)) - {"http://www.w3.org/2000/svg"}
    assert links == set()
    assert not re.search(r"<(link|img|iframe)\b|@import|\bfetch\(|src=", page)


def test_text_of_a_token_cannot_end_the_data(folder: RunFolder) -> None:
    view = embedded(build_report(folder, Words()))["rollouts"][0]["samples"][0]  # type: ignore[arg-type]
    assert view["text"] == ["<|im_start|>", "user\n", "</script><b>", "fine"]
    assert view["mask"] == [0, 0, 1, 0]
    assert view["logprobs"] == [None, None, -0.5, None]
    assert view["blocks"] == [[0, 1, "template"], [1, 2, "user"], [2, 4, "assistant"]]


def test_what_models_and_trainers_may_write_gives_a_page(folder: RunFolder) -> None:
    """A line separator inside a text, half a surrogate pair, an infinite gradient: the page must come."""
    strange = record(0.25, "strange")
    strange["example_id"] = "a\u2028b\x85c"
    strange["error"] = "KeyError: '\ud800'"
    line = json.dumps({**strange, "error": None}, ensure_ascii=False) + "\n" + json.dumps(strange) + "\n"
    write_text(folder.rollout_path(7), line)
    append_metrics(folder.metrics, 8, {"reward": 0.8, "grad_norm": float("inf"), "loss": float("nan")})
    page = write_report(folder, Words()).read_text()  # type: ignore[arg-type]
    [inline] = re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', page, re.S)
    data = json.loads(inline)
    assert [one["error"] for one in data["rollouts"][-2:]] == [None, "KeyError: '\ud800'"]
    assert data["metrics"][-1] == {"step": 8, "reward": 0.8, "grad_norm": None, "loss": None}


def test_rollouts_of_both_ends_and_of_different_rewards_are_shown(folder: RunFolder) -> None:
    shown = embedded(build_report(folder, Words(), rollouts=4))["rollouts"]  # type: ignore[arg-type]
    assert [(one["step"], one["reward"]) for one in shown] == [(0, 0.0), (0, 1.0), (7, 0.0), (7, 1.0)]


def test_an_empty_run_still_gives_a_page(tmp_path: Path) -> None:
    data = embedded(build_report(RunFolder(tmp_path / "empty"), Words()))  # type: ignore[arg-type]
    assert data["metrics"] == []
    assert data["rollouts"] == []


def test_the_summary_averages_five_steps_at_either_end(folder: RunFolder) -> None:
    summary = summarise(embedded(build_report(folder, Words()))["metrics"])  # type: ignore[arg-type]
    assert summary.reward_start == pytest.approx(0.2)
    assert summary.reward_end == pytest.approx(0.5)
    assert (summary.steps, summary.breaks, summary.samples_per_rollout) == (8, 0, 1.0)


def test_the_last_words_of_a_run_name_the_figures() -> None:
    config = RLConfig.model_validate(
        {"model": {"path": "m"}, "environments": [{"name": "e"}], "orchestrator": {"max_async_level": 0}}
    )
    rows = [{"reward": 0.5, "samples_per_rollout": 1.0, "breaks": 0.0, "max_logprob_diff": 2.5e-6}]
    text = "\n".join(outcome_lines(summarise(rows), config))
    assert "samples per rollout                      1.00" in text
    assert "log-prob      2.5e-06  (same weights, float32)" in text
