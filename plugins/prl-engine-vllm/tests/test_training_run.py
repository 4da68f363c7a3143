"""`prl rl` through a real vLLM server: the trainer sees the exact ids and log-probabilities that the sampler saw."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from prl.client import HttpEngineClient
from prl.config import load_config
from prl.testing.fake_dist import active_site, write_fake_dist
from prl_train.config import RLConfig
from prl_train.launch.processes import run_everything
from prl_train.run import RunFolder
from prl_train.run.metrics import read_metrics

pytestmark = pytest.mark.heavy
STEPS = 3
TURNS = 3

# An untrained model calls no tool, so this tool answers whatever the turn says: three turns of random text of the real
# vocabulary, which is the hardest case for exact tokens.
PLUGIN = """
from dataclasses import dataclass
from typing import Any

from prl.contracts.environment import Example, StepResult
from prl.plugin import EnvironmentEntry, hookimpl

@hookimpl
def prl_environments():
    return [EnvironmentEntry(name="echo-tool", target="echo_tool_plugin:create", summary="a tool that always answers")]

def create(options):
    return EchoTool()

class EchoTool:
    name = "echo-tool"
    max_turns = 3
    tools = [{"type": "function", "function": {"name": "echo", "description": "Say it again.",
              "parameters": {"type": "object", "properties": {"text": {"type": "string"}}}}}]

    def example(self, index):
        return Example(id=f"echo-tool/{index}", messages=({"role": "user", "content": f"Say {index}."},))

    def start(self, example):
        return Episode()

class Episode:
    def __init__(self):
        self.turns = 0
        self.reward = 0.0

    async def step(self, message, parsed):
        self.turns += 1
        self.reward += len(message.get("content") or "") % 7 / 7
        reply = {"role": "tool", "content": "again\\n", "name": "echo"}
        return StepResult(messages=(reply,), done=self.turns == 3, reward=self.reward)
"""
CONFIG = """
renderer = "qwen3"
sinks = []

[run]
report = false

[model]
path = "{model}"

[engine]
url = "{url}"

[[environments]]
name = "echo-tool"

[sampling]
max_tokens = 10

[orchestrator]
steps = {steps}
group_size = 4
groups_per_step = 2
max_async_level = 0
truncated_turn = "continue"

[trainer]
dtype = "float32"
seq_len = 512
lr = 1e-3
threads = 1
"""


@pytest.fixture
def train(qwen_server: Any, qwen_models: tuple[Path, Path], tmp_path: Path) -> Iterator[Callable[..., RunFolder]]:
    """Run `prl rl` to its end; afterwards the server holds its first weights again."""
    write_fake_dist(tmp_path / "site", "echo-tool", PLUGIN)

    def run(*overrides: str) -> RunFolder:
        path = tmp_path / "run.toml"
        path.write_text(CONFIG.format(model=qwen_models[0], url=qwen_server.url, steps=STEPS))
        run_everything(load_config(RLConfig, path, [f"run.directory={tmp_path / 'run'}", *overrides]))
        return RunFolder(tmp_path / "run")

    with active_site(tmp_path / "site"):
        yield run
    asyncio.run(_restore(qwen_server.url, qwen_models[0]))


async def _restore(url: str, model: Path) -> None:
    client = HttpEngineClient(url)
    await client.load_weights(str(model), 50)
    await client.close()


def rollouts(folder: RunFolder) -> list[dict[str, Any]]:
    """Return every logged rollout, with the step that trained it."""
    return [
        {"step": step, **json.loads(line)}
        for step in folder.rollout_steps()
        for line in folder.rollout_path(step).read_text().splitlines()
    ]


def test_engine_and_trainer_agree_and_nothing_breaks_in_renderer_mode(
    train: Callable[..., RunFolder], qwen_models: tuple[Path, Path]
) -> None:
    folder = train("client_mode=renderer", "renderer_options.enable_thinking=false")
    rows = read_metrics(folder.metrics)
    assert [row["step"] for row in rows] == list(range(STEPS))
    for row in rows:
        assert row["rollouts/errors"] == 0
        assert row["breaks"] == 0
        assert row["samples_per_rollout"] == 1.0
        assert not row["step_skipped"]
        assert row["max_logprob_diff"] < 1e-3
    played = rollouts(folder)
    assert len(played) == STEPS * 8
    for rollout in played:
        assert rollout["weight_versions"] == [rollout["step"]] * TURNS, "each step samples with the weights of the last"
    first = load_file(qwen_models[0] / "model.safetensors")
    newest = folder.latest_weights()
    assert newest is not None
    assert newest[0] == STEPS
    last = load_file(Path(newest[1]) / "model.safetensors")
    assert any((first[name] != last[name]).any() for name in first)


def test_the_same_run_with_weights_sent_from_process_to_process(train: Callable[..., RunFolder]) -> None:
    folder = train(
        "client_mode=renderer", "renderer_options.enable_thinking=false", "trainer.weight_transfer=broadcast"
    )
    rows = read_metrics(folder.metrics)
    assert [row["step"] for row in rows] == list(range(STEPS))
    assert max(row["max_logprob_diff"] for row in rows) < 1e-3
    for rollout in rollouts(folder):
        assert rollout["weight_versions"] == [rollout["step"]] * TURNS
    written = sorted(path.name for path in folder.weights.glob("version_*"))
    assert written == ["version_000000", f"version_{STEPS:06d}"], "the versions between were sent"


def test_the_same_run_in_chat_mode_shows_its_breaks(train: Callable[..., RunFolder]) -> None:
    """Text that goes back to the server is tokenized again, and differently: the telemetry must say so."""
    folder = train("client_mode=chat", "orchestrator.steps=1")
    [row] = read_metrics(folder.metrics)
    assert row["rollouts/errors"] == 0
    assert row["breaks"] > 0
    assert row["samples_per_rollout"] > 1.0
    assert row["max_logprob_diff"] < 1e-3, "what is trained are the ids that the server says it used"


def test_the_same_run_over_chat_with_given_ids(train: Callable[..., RunFolder]) -> None:
    folder = train("client_mode=token", "orchestrator.steps=1")
    [row] = read_metrics(folder.metrics)
    assert row["rollouts/errors"] == 0
    assert row["max_logprob_diff"] < 1e-3
    assert {tuple(rollout["weight_versions"]) for rollout in rollouts(folder)} == {(0, 0, 0)}
