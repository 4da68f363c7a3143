"""What jobs are played with: one stage for training, one for each evaluation."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from prl.contracts import AgentEnvironment, Environment, Example, RolloutJob
from prl.types import ConfigError, Rollout
from prl_train.orchestrator.play import LiveRollout, RolloutPlayer, begin_rollout
from prl_train.orchestrator.schedule import Schedule

from .agents import AgentPlayer


@dataclass(frozen=True, slots=True)
class Stage:
    """What one kind of rollouts is played with: those of training, or those of one evaluation."""

    schedule: Schedule
    player: RolloutPlayer
    agents: AgentPlayer | None = None

    async def play(
        self, live: LiveRollout, environment: Environment | AgentEnvironment, example: Example, cache_salt: str
    ) -> None:
        """Fill `live`; raise what breaks."""
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
    """Plays jobs of several stages; what breaks in a rollout is kept in it."""

    def __init__(self, stages: Mapping[str | None, Stage]) -> None:
        self.stages = dict(stages)

    async def play(self, job: RolloutJob) -> Rollout:
        """Play one rollout to its end; when cancelled, wait until what it began has ended."""
        stage = self.stages[job.evaluation]
        environment, example = stage.schedule.task(job.group)
        live = begin_rollout(job, stage.schedule, environment, example)
        task = asyncio.create_task(stage.play(live, environment, example, job.cache_salt))
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait([task])
            raise
        return live.finished(_failure(task))


def _failure(task: asyncio.Task[None]) -> BaseException | None:
    return asyncio.CancelledError("cancelled from within") if task.cancelled() else task.exception()
