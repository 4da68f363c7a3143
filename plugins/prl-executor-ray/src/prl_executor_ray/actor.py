"""What runs in a Ray process: one rollout worker, made from a spec."""

from __future__ import annotations

import os
from typing import Any

from prl.contracts import RolloutJob, WorkerSpec
from prl.plugin.worker import HeldWorker
from prl.types import Rollout

INSTALL = "install the run's distributions on every node, or give them in executor_options.runtime_env"


class WorkerActor:
    """Holds a worker. What crosses is plain data: JSON settings in, jobs in, rollouts out."""

    def __init__(self, target: str, settings: dict[str, Any]) -> None:
        self._spec = WorkerSpec(target=target, settings=settings)
        self._worker = HeldWorker("a Ray worker", next_step=INSTALL)

    async def start(self) -> int:
        """Make the worker and reach the engine; return this process's id."""
        await self._worker.start(self._spec)
        return os.getpid()

    async def play(self, job: RolloutJob) -> Rollout:
        """Play one rollout."""
        return await self._worker.play(job)

    async def close(self) -> None:
        """End the worker."""
        await self._worker.close()
