"""Supervised training in two processes is the training of one: same rows, same losses, same weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from prl.cli.main import main
from prl_train.trainer.checkpoint import latest_checkpoint

FILE = """
model = "{model}"
renderer = "qwen3"
steps = 6
rows_per_step = 3
[data]
path = "{data}"
[eval]
path = "{data}"
every = 3
max_rows = 5
[trainer]
lr = 5e-3
warmup_steps = 2
seq_len = 64
checkpoint_every = 2
keep_checkpoints = 9
"""


@pytest.fixture
def config(model_dir: Path, tmp_path: Path) -> Path:
    rows = [
        {
            "messages": [
                {"role": "user", "content": f"guess {number}"},
                {"role": "assistant", "content": "my guess is " + "1 " * (number % 5 + 1)},
            ]
        }
        for number in range(14)
    ]
    data = tmp_path / "rows.jsonl"
    data.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    path = tmp_path / "sft.toml"
    path.write_text(FILE.format(model=model_dir, data=data), encoding="utf-8")
    return path


def sft(config: Path, directory: Path, *more: str) -> None:
    assert main(["sft", "-c", str(config), f"directory={directory}", *more]) == 0


def metrics(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def weights(directory: Path) -> dict[str, torch.Tensor]:
    [version] = (directory / "weights").iterdir()
    return load_file(version / "model.safetensors")


@pytest.mark.heavy
def test_two_processes_train_as_one_and_go_on_from_each_others_checkpoints(config: Path, tmp_path: Path) -> None:
    alone, both, resumed = (tmp_path / name for name in ("alone", "both", "resumed"))
    sft(config, alone)
    sft(config, both, "trainer.processes=2")
    one, two = metrics(alone), metrics(both)
    for name in ("loss", "grad_norm", "tokens", "loss_tokens", "samples"):
        assert [row[name] for row in two] == pytest.approx([row[name] for row in one], rel=1e-5), name
    for step in (2, 5):
        assert two[step]["eval/loss"] == pytest.approx(one[step]["eval/loss"], rel=1e-5)
    held = weights(alone)
    for name, tensor in weights(both).items():
        torch.testing.assert_close(tensor, held[name], atol=1e-5, rtol=0, msg=name)

    # A run that two processes began and one goes on with.
    sft(config, resumed, "trainer.processes=2", "steps=4")
    assert latest_checkpoint(resumed / "checkpoints") == resumed / "checkpoints" / "step_000004"
    sft(config, resumed, "--resume")
    assert [row["step"] for row in metrics(resumed)] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert [row["loss"] for row in metrics(resumed)] == pytest.approx([row["loss"] for row in one], rel=1e-5)
