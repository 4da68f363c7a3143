"""A rollout worker in the process that holds it, whichever executor put it there."""

from __future__ import annotations

import asyncio
from typing import cast

from prl.contracts import RolloutJob, RolloutWorker, WorkerSpec
from prl.types import ConfigError, Rollout

from .loader import import_value

INSTALL = "install the same distributions in every process of the run"


def make_worker(spec: WorkerSpec, *, next_step: str = INSTALL) -> RolloutWorker:
    """Import a spec's target and call it with the settings; raise `ConfigError` where it is no "module:attribute"."""
    try:
        target = import_value(spec.target)
        if not callable(target):
            raise AttributeError("it is nothing that can be called")
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"the worker's target cannot be imported: {error}", where=repr(spec.target), next_step=next_step
        ) from error
    return cast(RolloutWorker, target(spec.settings))


class HeldWorker:
    """One worker in this process; `where` names it in errors, `next_step` is for a target that cannot be imported."""

    def __init__(self, where: str, *, next_step: str = INSTALL) -> None:
        self._where = where
        self._next_step = next_step
        self._worker: RolloutWorker | None = None

    async def start(self, spec: WorkerSpec) -> None:
        """Make the worker (its tokenizer and renderer are read in a thread) and reach the engine."""
        self._worker = await asyncio.to_thread(make_worker, spec, next_step=self._next_step)
        await self._worker.start()

    async def play(self, job: RolloutJob) -> Rollout:
        """Play a job here."""
        if self._worker is None:
            raise ConfigError("the worker was not started", where=self._where, next_step="await start() first")
        return await self._worker.play(job)

    async def close(self) -> None:
        """End the worker."""
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.close()
