"""Keep groups in flight, as many as the bound on off-policyness allows, and hand out finished ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from prl_train.run import RunError

from .groups import Group


@dataclass(slots=True)
class PoolCounts:
    """What was dropped since the last batch."""

    stale: int = 0
    failed: int = 0
    errors: int = 0


class GroupPool:
    """Launches groups in order of their number.

    A group may begin when the batch it would fall into, counted from what is in flight, is at most `max_async_level`
    ahead of the engine's weights. A finished group older than its batch allows is dropped and counted.
    """

    def __init__(
        self,
        run_group: Callable[[int], Coroutine[Any, Any, Group]],
        *,
        groups_per_step: int,
        max_async_level: int,
        last_step: int,
        max_failed_groups: int,
        next_group: int = 0,
        pending: Sequence[int] = (),
    ) -> None:
        self._run_group = run_group
        self.groups_per_step = groups_per_step
        self.max_async_level = max_async_level
        self.last_step = last_step
        self.max_failed_groups = max_failed_groups
        self.next_group = next_group
        self._counts = PoolCounts()
        self.version = -1
        self.step = 0
        self._again = sorted(pending)
        self._taken = 0
        self._failed_in_a_row = 0
        self._finished: asyncio.Queue[asyncio.Task[Group]] = asyncio.Queue()
        self._tasks: dict[asyncio.Task[Group], int] = {}

    @property
    def pending(self) -> list[int]:
        """Groups begun and not yet handed out, and those to begin again."""
        return sorted([*self._tasks.values(), *self._again])

    def take_counts(self) -> PoolCounts:
        """Return what was dropped since the last call."""
        taken, self._counts = self._counts, PoolCounts()
        return taken

    def new_weights(self, version: int) -> None:
        """Note that the engine serves `version`; launch what it allows."""
        self.version = version
        self._launch()

    async def collect(self, step: int) -> list[Group]:
        """Return the groups of batch `step`, in order of their number."""
        self.step, self._taken = step, 0
        groups: list[Group] = []
        while len(groups) < self.groups_per_step:
            self._launch()
            task = await self._finished.get()
            del self._tasks[task]
            group = task.result()
            if self._accept(group):
                groups.append(group)
                self._taken += 1
        # From here on, launches count towards the next batch.
        self.step, self._taken = step + 1, 0
        return sorted(groups, key=lambda group: group.index)

    def close(self) -> None:
        """Abort what is in flight."""
        for task in self._tasks:
            task.cancel()

    def _launch(self) -> None:
        while self._may_launch():
            if self._again:
                index = self._again.pop(0)
            else:
                index, self.next_group = self.next_group, self.next_group + 1
            task = asyncio.create_task(self._run_group(index))
            self._tasks[task] = index
            task.add_done_callback(self._done)

    def _may_launch(self) -> bool:
        if self.version < 0:
            return False  # the engine still serves the model it was started with, which is no version of this run
        slot = self._taken + len(self._tasks)
        batch = self.step + slot // self.groups_per_step
        return batch < self.last_step and batch - self.max_async_level <= self.version

    def _done(self, task: asyncio.Task[Group]) -> None:
        if not task.cancelled():
            self._finished.put_nowait(task)

    def _accept(self, group: Group) -> bool:
        self._counts.errors += len(group.rollouts) - len(group.valid)
        if group.failed:
            self._counts.failed += 1
            self._failed_in_a_row += 1
            self._raise_if_hopeless(group)
            return False
        self._failed_in_a_row = 0
        oldest = group.oldest_version
        if oldest is not None and oldest < self.step - self.max_async_level:
            self._counts.stale += 1
            return False
        return True

    def _raise_if_hopeless(self, group: Group) -> None:
        if self._failed_in_a_row < self.max_failed_groups:
            return
        last = group.rollouts[-1]
        raise RunError(
            f"every rollout of {self._failed_in_a_row} groups in a row failed; the last one with: {last.error}",
            where=f"environment {last.environment!r}, example {last.example_id!r}",
            next_step="repair the cause named above; the batches so far are kept, `--resume` goes on from them",
        )
