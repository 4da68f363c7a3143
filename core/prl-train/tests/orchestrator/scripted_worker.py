"""A worker whose model is arithmetic: what it plays depends on its settings and the job alone."""

from __future__ import annotations

from typing import Any

from prl.contracts import Example, RolloutJob, StepResult
from prl.types import Message, ParsedResponse, Rollout, SamplingParams, Turn
from prl_train.executor.stages import Stage, StagePlayer
from prl_train.orchestrator import RolloutPlayer, Schedule, WeightedEnvironment


class Session:
    def __init__(self, salt: str, seed: int) -> None:
        self.messages: list[Message] = []
        self.salt = salt
        self.seed = seed
        self.ids = [1]

    async def turn(self, new_messages: Any, sampling: SamplingParams) -> Turn:
        self.seed = self.seed * 48271 % 2147483647
        prompt, completion = [*self.ids, len(self.ids)], [self.seed % 100, 3]
        self.ids = prompt + completion
        return Turn(
            prompt_ids=prompt,
            completion_ids=completion,
            logprobs=[-0.5, -1 / 3],
            finish_reason="stop",
            weight_version=int(self.salt.removeprefix("weights-")),
            message={"role": "assistant", "content": str(self.seed)},
            parsed=ParsedResponse(content=str(self.seed)),
        )


class Mode:
    name = "arithmetic"

    def session(self, *, model: str, tools: Any, cache_salt: str, seed: int) -> Session:
        return Session(cache_salt, seed)


class Counting:
    """Answers until all turns are used; the reward is the last digit that was said."""

    name = "counting"
    tools = None

    def __init__(self, turns: int) -> None:
        self.max_turns = turns

    def example(self, index: int) -> Example:
        return Example(id=f"counting/{index}", messages=({"role": "user", "content": str(index)},))

    def start(self, example: Example) -> Counting:
        return self

    async def step(self, message: Message, parsed: ParsedResponse | None) -> StepResult:
        return StepResult(messages=({"role": "user", "content": "on"},), reward=float(str(message["content"])[-1]))


class ScriptedWorker:
    def __init__(self, stages: StagePlayer) -> None:
        self.stages = stages

    async def start(self) -> None: ...

    async def play(self, job: RolloutJob) -> Rollout:
        return await self.stages.play(job)

    async def close(self) -> None: ...


def create(settings: dict[str, Any]) -> ScriptedWorker:
    player = RolloutPlayer(Mode(), model="m", sampling=SamplingParams())  # type: ignore[arg-type]
    environment = WeightedEnvironment(Counting(settings["turns"]))  # type: ignore[arg-type]
    training = Stage(Schedule([environment], settings["seed"]), player)
    return ScriptedWorker(
        StagePlayer({None: training, "held-out": Stage(Schedule([environment], settings["seed"] + 1), player)})
    )
