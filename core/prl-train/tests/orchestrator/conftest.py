"""Fakes that obey the contracts: a client mode whose model is a function, and an environment that rewards by script."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from prl.contracts import Example, RolloutJob, StepResult
from prl.types import Message, ParsedResponse, Rollout, SamplingParams, ToolSpec, Turn
from prl_train.executor.stages import Stage, StagePlayer
from prl_train.orchestrator import RolloutPlayer, Schedule

Answer = Callable[["FakeSession"], Any]


@dataclass
class FakeSession:
    """A conversation whose ids are made up but consistent: each prompt extends the one before."""

    mode: FakeMode
    salt: str | None
    seed: int
    messages: list[Message] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    turns: int = 0
    new: list[Message] = field(default_factory=list)

    @property
    def task(self) -> int:
        return int(str((self.messages or self.new)[0].get("content")).split()[1])

    async def turn(self, new_messages: Sequence[Message], sampling: SamplingParams) -> Turn:
        await asyncio.sleep(0)
        self.new = list(new_messages)
        prompt = [*self.ids, *([1] * len(new_messages)), 2]
        made = self.mode.answer(self)
        if asyncio.iscoroutine(made):
            made = await made
        if isinstance(made, Exception):
            raise made
        turn = replace(made, prompt_ids=prompt)
        self.turns += 1
        self.ids = [*prompt, *turn.completion_ids]
        self.messages += [*new_messages, turn.message]
        return turn


@dataclass
class FakeMode:
    """A client mode; `answer(session)` returns the turn to give (prompt ids are filled in), or an error to raise."""

    answer: Answer
    name: str = "fake"
    sessions: list[FakeSession] = field(default_factory=list)

    def session(
        self, *, model: str, tools: Any = None, cache_salt: str | None = None, seed: int | None = None
    ) -> FakeSession:
        session = FakeSession(self, cache_salt, seed or 0)
        self.sessions.append(session)
        return session


def make_turn(text: str = "ok", *, version: int = 0, finish: str = "stop", token: int = 7) -> Turn:
    return Turn(
        prompt_ids=[],
        completion_ids=[token, 3],
        logprobs=[-0.5, -0.1],
        finish_reason=finish,
        weight_version=version,
        message={"role": "assistant", "content": text},
        parsed=ParsedResponse(content=text),
    )


@dataclass
class ScriptedEnvironment:
    """Rewards an answer by `score(text)`; asks `again` until `max_turns`."""

    score: Callable[[str], float]
    max_turns: int = 1
    name: str = "scripted"
    tools: Sequence[ToolSpec] | None = None
    examples: int | None = None

    def example(self, index: int) -> Example:
        number = index if self.examples is None else index % self.examples
        return Example(id=f"scripted/{number}", messages=({"role": "user", "content": f"task {number}"},))

    def start(self, example: Example) -> ScriptedEpisode:
        return ScriptedEpisode(self)


@dataclass
class ScriptedEpisode:
    environment: ScriptedEnvironment
    turns: int = 0

    async def step(self, message: Message, parsed: ParsedResponse | None) -> StepResult:
        self.turns += 1
        reward = self.environment.score(str(message.get("content")))
        done = self.turns >= self.environment.max_turns
        return StepResult(messages=({"role": "user", "content": "again"},), done=done, reward=reward)


@dataclass
class FakeExecutor:
    """Plays jobs here and now, as a worker would."""

    stages: StagePlayer

    async def start(self, spec: Any) -> None: ...

    async def play(self, job: RolloutJob) -> Rollout:
        return await self.stages.play(job)

    async def close(self) -> None: ...


def make_executor(mode: Any, schedule: Schedule, *, evaluations: dict[str, Schedule] | None = None) -> FakeExecutor:
    player = RolloutPlayer(mode, model="m", sampling=SamplingParams())
    schedules: dict[str | None, Schedule] = {None: schedule, **(evaluations or {})}
    return FakeExecutor(StagePlayer({name: Stage(one, player) for name, one in schedules.items()}))


def coin(session: FakeSession) -> Turn:
    """Answer yes or no by the session's seed, so that the same rollout always ends the same."""
    heads = random.Random(session.seed).random() < 0.5
    return make_turn("yes" if heads else "no", version=_version(session), token=8 if heads else 9)


def _version(session: FakeSession) -> int:
    return int((session.salt or "weights-0").removeprefix("weights-"))


@dataclass(frozen=True)
class Fakes:
    """All fakes by name."""

    Mode = FakeMode
    Environment = ScriptedEnvironment
    turn = staticmethod(make_turn)
    coin = staticmethod(coin)
    executor = staticmethod(make_executor)
    version = staticmethod(_version)


@pytest.fixture
def fakes() -> Fakes:
    return Fakes()
