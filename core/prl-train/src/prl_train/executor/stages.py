"""What jobs are played with: one stage for training, one for each evaluation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass

from prl.contracts import AgentEnvironment, Environment, Example, RolloutJob
from prl.types import ConfigError, Rollout
from prl_train.orchestrator.answers import EnvironmentAnswerError
from prl_train.orchestrator.play import LiveRollout, RolloutPlayer, begin_rollout
from prl_train.orchestrator.schedule import Schedule

from .agents import AgentPlayer


@dataclass(frozen=True, slots=True)
class Stage:
    """What one kind of rollouts is played with: those of training, or those of one evaluation."""

    schedule: Schedule
    player: RolloutPlayer
    agents: AgentPlayer | None = None

    async def play(self, live: LiveRollout, job: RolloutJob) -> None:
        """Fill `live`; raise what breaks."""
        environment, example = self.schedule.task(job.group)
        live.example_id = str(example.id)
        await self._play(live, environment, example, job.cache_salt)
        if not live.turns:
            raise EnvironmentAnswerError(
                "the rollout ended before its first turn",
                where=live.where,
                next_step="an environment needs max_turns of 1 or more; an agent must ask the model it is given",
            )

    async def _play(
        self, live: LiveRollout, environment: Environment | AgentEnvironment, example: Example, cache_salt: str
    ) -> None:
        if not isinstance(environment, AgentEnvironment):
            await self.player.play(live, environment, example, cache_salt)
            return
        if self.agents is None:
            raise ConfigError(
                f"environment {environment.name!r} runs an agent, which needs a client mode that renders",
                where="client_mode",
                next_step='set client_mode = "renderer"',
            )
        await self.agents.play(live, environment, example, cache_salt)


class StagePlayer:
    """Plays jobs of several stages; what breaks in a rollout, or takes longer than `seconds`, is kept in it."""

    def __init__(self, stages: Mapping[str | None, Stage], seconds: float | None = None) -> None:
        self.stages = dict(stages)
        self.seconds = seconds

    async def play(self, job: RolloutJob) -> Rollout:
        """Play one rollout to its end; when cancelled, wait until what it began has ended."""
        stage = self.stages[job.evaluation]
        live = begin_rollout(job, stage.schedule)
        task = asyncio.create_task(_contained(stage.play(live, job), live))
        try:
            done, _ = await asyncio.wait([task], timeout=self.seconds)
        except asyncio.CancelledError:
            await _end(task)
            raise
        if not done:
            await _end(task)
            return live.finished(self._too_long(live))
        return live.finished(_failure(task))

    def _too_long(self, live: LiveRollout) -> EnvironmentAnswerError:
        return EnvironmentAnswerError(
            f"the rollout did not end within {self.seconds:g} s",
            where=live.where,
            next_step="see what it waits for, or raise orchestrator.rollout_seconds",
        )


async def _contained(playing: Awaitable[None], live: LiveRollout) -> None:
    """Await a rollout; what would end the whole program is an error of this rollout alone."""
    try:
        await playing
    except SystemExit as error:
        raise EnvironmentAnswerError(
            f"the environment ended the program: SystemExit: {error}",
            where=live.where,
            next_step="have it run what a model wrote in a process of its own",
        ) from error


async def _end(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait until what it began has ended."""
    task.cancel()
    await asyncio.wait([task])


def _failure(task: asyncio.Task[None]) -> BaseException | None:
    return asyncio.CancelledError("cancelled from within") if task.cancelled() else task.exception()
