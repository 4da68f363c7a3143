"""Two thousand rollouts at once over HTTP: nothing lost, every id exact, within a bound of requests and of time."""

from __future__ import annotations

import asyncio
import json
import resource
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fixtures.stub_engine import LOGPROB, MODEL, choose

from prl import create_renderer
from prl.client import EnginePool, FixedAddresses, PoolSettings, RendererModeOptions, create_renderer_mode
from prl.contracts import Example, Renderer, StepResult
from prl.plugin import RendererEntry, get_registry
from prl.tokenizer import as_tokenizer
from prl.types import Message, ParsedResponse, SamplingParams
from prl_train.executor.stages import Stage, StagePlayer
from prl_train.models import train_small_tokenizer
from prl_train.orchestrator import RolloutPlayer, Schedule, WeightedEnvironment
from prl_train.orchestrator.groups import Group, GroupRunner

pytestmark = pytest.mark.heavy
GROUPS, SIZE, TURNS = 250, 8, 4
FAULT_EVERY = 50  # one request in so many meets a 503 or a broken connection first
SECONDS = 100.0
STUB = Path(__file__).parents[1] / "fixtures" / "stub_engine.py"
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
CALLS = 16


class Looking:
    """Four turns; each answer of the tool is longer than the one before."""

    name = "looking"
    max_turns = TURNS
    tools: Sequence[dict[str, Any]] = (TOOL,)

    def example(self, index: int) -> Example:
        return Example(id=f"look-{index}", messages=({"role": "user", "content": f"Look for number {index}."},))

    def start(self, example: Example) -> Looks:
        return Looks(example.id)


@dataclass
class Looks:
    place: str
    turns: int = 0

    async def step(self, message: Message, parsed: ParsedResponse | None) -> StepResult:
        assert parsed is not None
        [call] = parsed.tool_calls
        self.turns += 1
        text = f"{self.place}, shelf {call.arguments['shelf']}: " + "nothing here. " * 4 * self.turns
        reply: Message = {"role": "tool", "content": text, "tool_call_id": call.id}
        reward = float(call.arguments["shelf"])
        return StepResult(messages=(reply,), done=self.turns == TURNS, reward=reward)


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    controls = get_registry().find(RendererEntry, "qwen3").control_tokens
    texts = ["user\nLook for number 17.", "look-3, shelf 2: nothing here. nothing here. ", '{"name": "look"'] * 8
    tokenizer = train_small_tokenizer(texts, controls, 400)
    return create_renderer(as_tokenizer(tokenizer), "qwen3", enable_thinking=False)


@pytest.fixture(scope="module")
def table(renderer: Renderer) -> list[list[int]]:
    """What the stub answers: the tokens of tool calls, as a model samples them."""
    question: list[Message] = [{"role": "user", "content": "Look."}]
    start = renderer.render_ids(question, add_generation_prompt=True)
    stops = renderer.get_stop_token_ids()
    found: list[list[int]] = []
    for shelf in range(CALLS):
        function = {"name": "look", "arguments": {"shelf": shelf}}
        answer: Message = {"role": "assistant", "content": "", "tool_calls": [{"function": function}]}  # type: ignore[typeddict-item]
        ids = renderer.render_ids([*question, answer])[len(start) :]
        end = next(place for place, token in enumerate(ids) if token in stops)
        found.append(ids[: end + 1])
    return found


@contextmanager
def stub(table: list[list[int]], folder: Path) -> Iterator[str]:
    path = folder / "table.json"
    path.write_text(json.dumps(table), encoding="utf-8")
    words = [sys.executable, str(STUB), str(path), str(FAULT_EVERY)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        try:
            yield f"http://127.0.0.1:{child.stdout.readline().strip()}"
        finally:
            child.kill()


def stats(url: str) -> dict[str, int]:
    with urllib.request.urlopen(f"{url}/stats", timeout=10) as response:
        return dict(json.load(response))


async def run_groups(url: str, renderer: Renderer) -> list[Group]:
    pool = EnginePool(FixedAddresses([url]), PoolSettings(backoff=0.01, patience=30.0))
    mode = create_renderer_mode(pool, renderer, RendererModeOptions())
    schedule = Schedule([WeightedEnvironment(Looking())], 0)
    player = RolloutPlayer(mode, model=MODEL, sampling=SamplingParams())
    runner = GroupRunner(
        StagePlayer({None: Stage(schedule, player)}),
        schedule,
        group_size=SIZE,
        max_concurrency=GROUPS * SIZE,
        advantage_std=False,
        current_version=lambda: 0,
    )
    try:
        return list(await asyncio.gather(*(runner.run(number) for number in range(GROUPS))))
    finally:
        await pool.close()


def test_two_thousand_rollouts_at_once(tmp_path: Path, renderer: Renderer, table: list[list[int]]) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 8192)), hard))
    with stub(table, tmp_path) as url:
        began = time.monotonic()
        groups = asyncio.run(run_groups(url, renderer))
        seconds = time.monotonic() - began
        counts = stats(url)
    assert seconds < SECONDS
    assert sorted(group.index for group in groups) == list(range(GROUPS))
    for group in groups:
        check_group(group, table)
    assert counts["most_open"] <= GROUPS * SIZE + 5, "no more connections than rollouts, health checks apart"
    assert counts["unavailable"] > 20, "the faults were met"
    assert counts["reset"] > 20, "the faults were met"
    requests = GROUPS * SIZE * TURNS
    assert requests <= counts["answered"] <= requests * 1.05, "every request once, and few that a fault cost"


def check_group(group: Group, table: list[list[int]]) -> None:
    """Every turn is what the stub answers to exactly this prompt, and every prompt goes on from the one before."""
    assert [rollout.error for rollout in group.rollouts] == [None] * SIZE
    for rollout, result in zip(group.rollouts, group.results, strict=True):
        assert len(rollout.turns) == TURNS
        assert len(result.samples) == 1
        before: list[int] = []
        for turn in rollout.turns:
            assert turn.prompt_ids[: len(before)] == before
            assert len(turn.prompt_ids) > len(before)
            shelf = choose(turn.prompt_ids, len(table))
            assert turn.completion_ids == table[shelf]
            assert turn.logprobs == [LOGPROB] * len(table[shelf])
            assert turn.parsed is not None
            assert [call.arguments for call in turn.parsed.tool_calls] == [{"shelf": shelf}]
            before = [*turn.prompt_ids, *turn.completion_ids]
        [sample] = result.samples
        assert sample.prompt_ids + sample.completion_ids == before
        assert sum(sample.completion_mask) == sum(len(turn.completion_ids) for turn in rollout.turns)
