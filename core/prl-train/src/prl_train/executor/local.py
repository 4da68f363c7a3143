"""The executor `local`: rollouts are played in the orchestrator's own process."""

from __future__ import annotations

import asyncio
import importlib
from typing import Any

from prl.contracts import RolloutJob, RolloutWorker, WorkerSpec
from prl.plugin.options import NoOptions
from prl.types import ConfigError, Rollout


def make_worker(spec: WorkerSpec) -> RolloutWorker:
    """Import a spec's target and call it with the settings; raise `ConfigError` where it is no "module:attribute"."""
    module, _, attribute = spec.target.partition(":")
    try:
        target: Any = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"the worker's target cannot be imported: {error}",
            where=repr(spec.target),
            next_step="install the same distributions in every process of the run",
        ) from error
    worker: RolloutWorker = target(spec.settings)
    return worker


class LocalExecutor:
    """One worker, on the orchestrator's event loop."""

    def __init__(self) -> None:
        self._worker: RolloutWorker | None = None

    async def start(self, spec: WorkerSpec) -> None:
        """Make the worker (its tokenizer and renderer are read in a thread) and reach the engine."""
        self._worker = await asyncio.to_thread(make_worker, spec)
        await self._worker.start()

    async def play(self, job: RolloutJob) -> Rollout:
        """Play a job here."""
        if self._worker is None:
            raise ConfigError("the executor was not started", where='executor "local"', next_step="await start() first")
        return await self._worker.play(job)

    async def close(self) -> None:
        """End the worker."""
        if self._worker is not None:
            await self._worker.close()
            self._worker = None


def create(options: NoOptions) -> LocalExecutor:
    """Create the executor."""
    return LocalExecutor()
