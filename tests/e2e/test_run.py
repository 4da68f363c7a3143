"""The whole loop with real parts: what a user gets from `prl rl`."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.numpy import load_file

from prl import create_renderer, load_tokenizer
from prl_train.launch import train_loop
from prl_train.launch.processes import run_everything
from prl_train.models import load_model
from prl_train.run import RunFolder
from prl_train.run.metrics import read_metrics

pytestmark = pytest.mark.heavy


def test_a_short_run_trains_on_exactly_what_was_sampled(tmp_path: Path, configure: Any) -> None:
    config = configure(tmp_path / "run")
    run_everything(config)
    folder = RunFolder(tmp_path / "run")
    rows = read_metrics(folder.metrics)
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    for row in rows:
        assert row["samples_per_rollout"] == 1.0
        assert row["breaks"] == 0.0
        assert row["rollouts/errors"] == 0.0
    trained = [row for row in rows if not row["step_skipped"]]
    assert trained, "no batch had a learning signal"
    assert all(math.isfinite(row["loss"]) and math.isfinite(row["grad_norm"]) for row in trained)
    assert max(row["max_logprob_diff"] for row in trained) < 1e-3
    first, last = load_file(folder.model / "model.safetensors"), _newest(folder)
    assert any((first[name] != last[name]).any() for name in first)
    assert "prl-renderer-qwen" in folder.plugins.read_text()
    assert folder.report.stat().st_size > 20_000


def test_logged_rollouts_prove_their_tokens(tmp_path: Path, configure: Any) -> None:
    run_everything(configure(tmp_path / "run", "orchestrator.steps=1", "warmup.steps=80"))
    folder = RunFolder(tmp_path / "run")
    renderer = create_renderer(load_tokenizer(folder.model), "qwen3", enable_thinking=False)
    tools = configure(tmp_path / "run").environments[0].options
    assert tools["high"] == 3
    records = [json.loads(line) for line in folder.rollout_path(0).read_text().splitlines()]
    two_turns = [record for record in records if len(record["messages"]) > 2]
    assert two_turns, "no rollout came to a second turn"
    for record in two_turns:
        (sample,) = record["samples"]
        ids = sample["prompt_ids"] + sample["completion_ids"]
        assert sample["spans"][0][0] == 0
        assert sample["spans"][-1][1] == len(ids)
        owners = [span[2] for span in sample["spans"] if span[2] >= 0]
        assert owners == sorted(owners)
        assert set(owners) == {0, 1, 2, 3}
        answered = [i for start, end, owner in sample["spans"] if owner in (1, 3) for i in range(start, end)]
        mask = [0] * len(sample["prompt_ids"]) + sample["mask"]
        assert all(mask[i] for i in answered if ids[i] not in _newline_after_turn(renderer, ids, i))


def _newline_after_turn(renderer: Any, ids: list[int], position: int) -> set[int]:
    """Return the token itself where it is the framing after a stop token, which no model samples."""
    stops = set(renderer.get_stop_token_ids())
    return {ids[position]} if position and ids[position - 1] in stops else set()


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path, configure: Any) -> None:
    # One rollout at a time: the engine's batches otherwise depend on timing, and float32 sums on the batch's shape, so
    # that even two uninterrupted runs differ in the seventh digit. With that gone, equality is exact.
    alone = "orchestrator.max_concurrency=1"
    run_everything(configure(tmp_path / "whole", alone))
    run_everything(configure(tmp_path / "parts", alone, "orchestrator.steps=2"))
    run_everything(configure(tmp_path / "parts", alone, "run.existing=resume"))
    whole, parts = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "parts")
    for name, values in _newest(whole).items():
        assert (values == _newest(parts)[name]).all(), name
    same = ("reward", "loss", "grad_norm", "tokens/completion")
    rows = [[{key: row.get(key) for key in same} for row in read_metrics(run.metrics)] for run in (whole, parts)]
    assert rows[0] == rows[1]
    for step in range(4):
        assert whole.rollout_path(step).read_text() == parts.rollout_path(step).read_text()


def test_sampling_ahead_of_the_weights_stays_within_its_bound_and_is_labelled_truly(
    tmp_path: Path, configure: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # All versions are kept, so that each turn can be scored under the very weights it says it was sampled by.
    monkeypatch.setattr(train_loop, "remove_old_weights", lambda *_: [])
    run_everything(configure(tmp_path / "run", "orchestrator.max_async_level=1", "orchestrator.steps=6"))
    folder = RunFolder(tmp_path / "run")
    rows = read_metrics(folder.metrics)
    assert len(rows) == 6
    assert max(row["off_policy_lag"] for row in rows) == 1.0
    # The first batch has no older weights to come from: those that sampled it train it, as in a synchronous run.
    assert rows[0]["max_logprob_diff"] < 1e-3
    models: dict[int, Any] = {}
    for step in folder.rollout_steps():
        for line in folder.rollout_path(step).read_text().splitlines():
            record = json.loads(line)
            (sample,) = record["samples"]
            turns = _sampled_ranges(sample)
            assert len(turns) == len(record["weight_versions"])
            for (start, end), version in zip(turns, record["weight_versions"], strict=True):
                if version not in models:
                    models[version] = load_model(folder.weights / f"version_{version:06d}").eval()
                assert _difference(models[version], sample, start, end) < 1e-3, (step, record["trajectory_id"], version)
    assert len(models) >= 5


def _sampled_ranges(sample: dict[str, Any]) -> list[tuple[int, int]]:
    """Return the runs of sampled tokens, as positions in the completion."""
    edges = [0, *sample["mask"], 0]
    starts = [i for i in range(len(sample["mask"])) if (edges[i], edges[i + 1]) == (0, 1)]
    ends = [i for i in range(1, len(sample["mask"]) + 1) if (edges[i], edges[i + 1]) == (1, 0)]
    return list(zip(starts, ends, strict=True))


def _difference(model: Any, sample: dict[str, Any], start: int, end: int) -> float:
    """Return the largest |engine - model| log-probability of the sampled tokens `start <= i < end`."""
    before = len(sample["prompt_ids"])
    ids = (sample["prompt_ids"] + sample["completion_ids"])[: before + end]
    with torch.no_grad():
        scores = torch.log_softmax(model(torch.tensor([ids])).logits[0].float(), dim=-1)
    return max(
        abs(float(scores[before + i - 1, sample["completion_ids"][i]]) - sample["logprobs"][i])
        for i in range(start, end)
    )


def _newest(folder: RunFolder) -> dict[str, Any]:
    newest = folder.latest_weights()
    assert newest is not None
    return dict(load_file(Path(newest[1]) / "model.safetensors"))
