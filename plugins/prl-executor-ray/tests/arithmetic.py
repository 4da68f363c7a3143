"""A worker without model and engine: its settings and the job alone decide what it plays. Ray processes import it."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from prl.contracts import RolloutJob
from prl.types import ConfigError, ParsedResponse, Rollout, Turn


class Worker:
    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings

    async def start(self) -> None:
        if self.settings.get("fails"):
            raise ConfigError("no engine", where="the worker", next_step="start one")

    async def play(self, job: RolloutJob) -> Rollout:
        for _ in range(int(self.settings.get("waits", 0) * 100)):
            await asyncio.sleep(0.01)
        if self.settings.get("dies"):
            os.kill(os.getpid(), 9)
        if job.member == self.settings.get("breaks_at"):
            raise ConfigError("this task cannot be played", where="member", next_step="play another")
        text = f"{self.settings['seed']}/{job.group}/{job.member} \ud800"
        turn = Turn(
            prompt_ids=[job.group],
            completion_ids=[job.member, 10**12],
            logprobs=[-1 / 3, -0.0],
            finish_reason="stop",
            weight_version=int(job.cache_salt),
            message={"role": "assistant", "content": text},
            parsed=ParsedResponse(content=text),
        )
        return Rollout(trajectory_id=f"{job.group}/{job.member}", turns=(turn,), reward=0.5, messages=(turn.message,))

    async def close(self) -> None: ...


def create(settings: dict[str, Any]) -> Worker:
    return Worker(settings)
