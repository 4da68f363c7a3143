"""Rollouts of agents: one key each, turns kept whatever happens, nothing left running."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from prl.contracts import AgentEndpoint, AgentResult, Example, RolloutJob
from prl.types import SamplingParams
from prl_train.executor.agents import AgentPlayer
from prl_train.executor.stages import Stage, StagePlayer
from prl_train.orchestrator import RolloutPlayer, Schedule, WeightedEnvironment


class FakeSession:
    """A gateway session with two turns."""

    def __init__(self, fakes: Any, number: int, opened: dict[str, Any]) -> None:
        self.api_key = f"key-{number}"
        self.opened = opened
        self.closed = False
        self.tools = [{"type": "function", "function": {"name": "guess"}}]
        self._turns = (fakes.turn("1"), fakes.turn("2", finish=opened["finish"]))
        self.messages = ({"role": "user", "content": "?"}, self._turns[0].message)

    async def close(self) -> Any:
        self.closed = True
        return self._turns


class FakeHost:
    """Stands for the worker's gateway."""

    model = "tiny"

    def __init__(self, fakes: Any, finish: str = "stop") -> None:
        self.fakes = fakes
        self.finish = finish
        self.sessions: list[FakeSession] = []

    async def address(self) -> Any:
        return self, "http://127.0.0.1:1/v1"

    def open_session(self, **opened: Any) -> FakeSession:
        self.sessions.append(FakeSession(self.fakes, len(self.sessions), {**opened, "finish": self.finish}))
        return self.sessions[-1]


class Agents:
    """An environment in Python whose agent does what the test says."""

    name = "agents"

    def __init__(self, act: Any) -> None:
        self.act = act

    def example(self, index: int) -> Example:
        return Example(id=f"agents/{index}", messages=({"role": "user", "content": "?"},))

    async def run(self, example: Example, endpoint: AgentEndpoint) -> AgentResult:
        made = self.act(endpoint)
        return await made if asyncio.iscoroutine(made) else made


def stages(fakes: Any, host: FakeHost | None, act: Any) -> StagePlayer:
    sampling = SamplingParams(temperature=0.8, max_tokens=5)
    schedule = Schedule([WeightedEnvironment(Agents(act))], seed=3)  # type: ignore[arg-type]
    agents = None if host is None else AgentPlayer(host, sampling)  # type: ignore[arg-type]
    player = RolloutPlayer(fakes.Mode(fakes.coin), model="m", sampling=sampling)
    return StagePlayer({None: Stage(schedule, player, agents)})


JOB = RolloutJob(group=4, member=1, cache_salt="weights-2")


async def test_an_agents_rollout_is_what_was_asked_under_its_key(fakes: Any) -> None:
    asked: list[AgentEndpoint] = []

    def act(endpoint: AgentEndpoint) -> AgentResult:
        asked.append(endpoint)
        return AgentResult(reward=0.5, metrics={"steps": 2.0}, output="done")

    host = FakeHost(fakes)
    rollout = await stages(fakes, host, act).play(JOB)
    assert asked == [AgentEndpoint(base_url="http://127.0.0.1:1/v1", api_key="key-0", model="tiny")]
    opened = host.sessions[0].opened
    assert (opened["cache_salt"], opened["sampling"].temperature) == ("weights-2", 0.8)
    assert opened["seed"] == Schedule([], 3).rollout_seed(4, 1)
    assert (rollout.reward, rollout.metrics, rollout.output, rollout.stop_reason) == (
        0.5,
        {"steps": 2.0},
        "done",
        "done",
    )
    assert (len(rollout.turns), len(rollout.messages), len(rollout.tools)) == (2, 2, 1)
    assert (rollout.trajectory_id, rollout.environment, rollout.is_truncated) == ("group-000004/001", "agents", False)


async def test_an_agent_that_fails_keeps_its_turns_and_its_key_is_closed(fakes: Any) -> None:
    def act(endpoint: AgentEndpoint) -> AgentResult:
        raise RuntimeError("no such tool")

    host = FakeHost(fakes, finish="length")
    rollout = await stages(fakes, host, act).play(JOB)
    assert (rollout.error, rollout.stop_reason) == ("RuntimeError: no such tool", "error")
    assert (len(rollout.turns), rollout.is_truncated, host.sessions[0].closed) == (2, True, True)


async def test_a_cancelled_rollout_waits_for_its_agents_end(fakes: Any) -> None:
    ended: list[str] = []

    async def act(endpoint: AgentEndpoint) -> AgentResult:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.02)
            ended.append("agent")
        return AgentResult(reward=0.0)

    host = FakeHost(fakes)
    task = asyncio.create_task(stages(fakes, host, act).play(JOB))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (ended, host.sessions[0].closed) == (["agent"], True)


async def test_without_a_renderer_an_agent_is_an_error_that_says_what_to_set(fakes: Any) -> None:
    rollout = await stages(fakes, None, lambda endpoint: AgentResult(reward=1.0)).play(JOB)
    assert rollout.error is not None
    assert "needs a client mode that renders" in rollout.error
    assert rollout.turns == ()
