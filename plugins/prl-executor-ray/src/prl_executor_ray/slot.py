"""One place for a worker: the actor that holds it now, and how the next one comes when that dies."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError

from prl.contracts import RolloutJob
from prl.types import EngineUnavailableError, Rollout


class Slot:
    """Plays jobs on one actor at a time; `busy` is how many it has now."""

    def __init__(self, number: int, make: Callable[[], Any], start_seconds: float) -> None:
        self.number = number
        self.busy = 0
        self.pid = 0
        self.lives = 0
        self._make = make
        self._start_seconds = start_seconds
        self._actor: Any = None
        self._starting = asyncio.Lock()

    async def start(self) -> None:
        """Bring an actor up; raise what its worker raised, or `EngineUnavailableError` where Ray has no room."""
        actor = self._make()
        try:
            self.pid = await asyncio.wait_for(_answer(actor.start.remote()), self._start_seconds)
        except (TimeoutError, GetTimeoutError) as error:
            ray.kill(actor)
            raise EngineUnavailableError(
                f"worker {self.number} did not come up within {self._start_seconds:.0f} s",
                where=f"Ray, with {_resources()}",
                next_step="lower executor_options.num_workers or cpus_per_worker, add nodes, or raise start_seconds",
            ) from error
        except BaseException:
            ray.kill(actor)
            raise
        self._actor, self.lives = actor, self.lives + 1

    async def play(self, job: RolloutJob) -> Rollout:
        """Play a job. Raises a `RayError` that is not a `RayTaskError` where the actor died."""
        reference = self._actor.play.remote(job)
        self.busy += 1
        try:
            rollout: Rollout = await _answer(reference)
        except asyncio.CancelledError:
            ray.cancel(reference)
            with contextlib.suppress(Exception):
                await reference
            raise
        finally:
            self.busy -= 1
        return rollout

    async def replace(self, life: int) -> None:
        """Bring up the actor that follows the one of `life`; many jobs may ask at once, one new actor comes."""
        async with self._starting:
            if self.lives == life:
                await self.start()

    async def close(self) -> None:
        """End the actor."""
        if self._actor is None:
            return
        with contextlib.suppress(RayError, TimeoutError):  # it may be dead already
            await asyncio.wait_for(_answer(self._actor.close.remote()), timeout=30)
        ray.kill(self._actor)
        self._actor = None


async def _answer(reference: Any) -> Any:
    """Wait for a reference; an error of the worker's own is raised as it was, not wrapped."""
    try:
        return await reference
    except RayTaskError as error:
        raise error.cause from None


def _resources() -> str:
    cluster: Any = ray
    total, free = cluster.cluster_resources().get("CPU", 0), cluster.available_resources().get("CPU", 0)
    return f"{free:g} of {total:g} CPUs free"
