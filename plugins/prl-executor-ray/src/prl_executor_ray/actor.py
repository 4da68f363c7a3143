"""What runs in a Ray process: one rollout worker, made from a spec."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from prl.contracts import RolloutJob, RolloutWorker
from prl.plugin.loader import import_value
from prl.types import ConfigError, Rollout


class WorkerActor:
    """Holds a worker. What crosses is plain data: JSON settings in, jobs in, rollouts out."""

    def __init__(self, target: str, settings: dict[str, Any]) -> None:
        self._target = target
        self._settings = settings
        self._worker: RolloutWorker | None = None

    async def start(self) -> int:
        """Make the worker and reach the engine; return this process's id."""
        self._worker = await asyncio.to_thread(self._make)
        await self._worker.start()
        return os.getpid()

    def _make(self) -> RolloutWorker:
        try:
            target: Any = import_value(self._target)
        except (ImportError, AttributeError) as error:
            raise ConfigError(
                f"a Ray worker cannot import its target: {error}",
                where=repr(self._target),
                next_step="install the run's distributions on every node, or give them in executor_options.runtime_env",
            ) from error
        worker: RolloutWorker = target(self._settings)
        return worker

    async def play(self, job: RolloutJob) -> Rollout:
        """Play one rollout."""
        if self._worker is None:
            raise ConfigError("the worker was not started", where="a Ray worker", next_step="await start() first")
        return await self._worker.play(job)

    async def close(self) -> None:
        """End the worker."""
        if self._worker is not None:
            await self._worker.close()
