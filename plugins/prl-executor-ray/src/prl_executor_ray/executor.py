"""The executor `ray`."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import ray
from ray.exceptions import RayError

from prl.contracts import RolloutJob, WorkerSpec
from prl.types import ConfigError, EngineError, Rollout

from .actor import WorkerActor
from .options import RayOptions
from .slot import Slot

LOG = logging.getLogger("prl.executor.ray")


class WorkerLostError(EngineError):
    """Workers died under a rollout more often than it may be played again."""

    code = "worker_lost"


class RayExecutor:
    """Workers in Ray actors; a job goes to the one that has the fewest.

    A job has its seeds in itself, so what is played again is the same rollout.
    """

    def __init__(self, options: RayOptions) -> None:
        self.options = options
        self.slots: list[Slot] = []
        self._own_ray = False
        self._room = asyncio.Semaphore(options.num_workers * options.rollouts_per_worker)

    async def start(self, spec: WorkerSpec) -> None:
        """Connect to Ray, or start one, and bring all workers up."""
        await asyncio.to_thread(self._connect)
        actor = ray.remote(WorkerActor).options(
            num_cpus=self.options.cpus_per_worker,
            # Room for `close` beside the rollouts.
            max_concurrency=self.options.rollouts_per_worker + 1,
            scheduling_strategy=self.options.placement,
            runtime_env=self.options.runtime_env or None,
        )

        def make() -> Any:
            return actor.remote(spec.target, spec.settings)

        numbers = range(self.options.num_workers)
        self.slots = [Slot(number, make, self.options.start_seconds) for number in numbers]
        await asyncio.gather(*(slot.start() for slot in self.slots))

    async def play(self, job: RolloutJob) -> Rollout:
        """Play a job; where its worker dies it is played again on the next."""
        if not self.slots:
            raise ConfigError("the executor was not started", where='executor "ray"', next_step="await start() first")
        async with self._room:
            for _ in range(self.options.max_replays + 1):
                slot = min(self.slots, key=lambda slot: slot.busy)
                life = slot.lives
                try:
                    return await slot.play(job)
                except RayError as error:
                    LOG.warning("worker %d (pid %d) is lost, another one comes: %s", slot.number, slot.pid, error)
                    await slot.replace(life)
        raise WorkerLostError(
            f"the rollout's worker died {self.options.max_replays + 1} times",
            where=f"group {job.group}, member {job.member}",
            next_step="see Ray's logs of the worker (`ray logs`): out of memory is the usual cause; "
            "lower rollouts_per_worker",
        )

    async def close(self) -> None:
        """End the workers, and Ray where it is ours."""
        await asyncio.gather(*(slot.close() for slot in self.slots))
        self.slots = []
        if self._own_ray:
            self._own_ray = False
            await asyncio.to_thread(ray.shutdown)

    def _connect(self) -> None:
        if ray.is_initialized():
            return
        try:
            if self.options.address is None:
                self._start_ray()
            else:
                ray.init(address=self.options.address, namespace=self.options.namespace, log_to_driver=True)
        except ConnectionError as error:
            raise ConfigError(
                f"no Ray cluster answers: {error}",
                where=f"executor_options.address = {self.options.address!r}",
                next_step="start one with `ray start --head`, correct the address, or leave it out",
            ) from error
        self._own_ray = True

    def _start_ray(self) -> None:
        """Start a Ray of this machine that nobody else can reach, with a CPU for each worker."""
        ray.init(
            address="local",
            num_cpus=max(1, round(self.options.num_workers * self.options.cpus_per_worker + 0.499)),
            namespace=self.options.namespace,
            include_dashboard=False,
            object_store_memory=self.options.object_store_mb << 20,
            _node_ip_address="127.0.0.1",
        )


def create(options: RayOptions) -> RayExecutor:
    """Create the executor; Ray is reached when it starts."""
    return RayExecutor(options)
