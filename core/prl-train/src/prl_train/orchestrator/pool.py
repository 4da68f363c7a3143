"""Keep groups in flight, as many as the bound on off-policyness allows, and hand out finished ones."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from prl.types import UNPUBLISHED
from prl_train.run import RunError

from .groups import Group

MAX_SKIPPED = 100_000
"""Groups in a row whose examples no filter wants, after which there is nothing left to play."""


@dataclass(slots=True)
class PoolCounts:
    """What happened since the last batch, besides the groups that are in it.

    `dropped` are the finished groups that came into no batch; `cancelled` groups were cancelled in flight and `expired`
    ones were finished but waited too long: both are begun again. `idle` are seconds without any group in flight.
    """

    stale: int = 0
    failed: int = 0
    filtered: int = 0
    errors: int = 0
    cancelled: int = 0
    expired: int = 0
    skipped: int = 0
    idle: float = 0.0
    dropped: list[Group] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Flight:
    """A group that was begun: its number, and the weights' version at that time."""

    index: int
    version: int


class GroupPool:
    """Launches groups in order of their number.

    A group may begin when the batch it would fall into, counted from what is in flight, is at most `max_async_level`
    ahead of the engine's weights. A finished group older than its batch allows is dropped and counted. With
    `max_off_policy_steps`, groups begun more than that many versions ago are cancelled, or taken back where they are
    finished and wait, and are begun again under the new weights.
    """

    def __init__(
        self,
        run_group: Callable[[int], Coroutine[Any, Any, Group]],
        *,
        groups_per_step: int,
        max_async_level: int,
        last_step: int,
        max_failed_groups: int,
        max_off_policy_steps: int | None = None,
        max_filtered_groups: int = 32,
        wants: Callable[[int], bool] | None = None,
        next_group: int = 0,
        pending: Sequence[int] = (),
    ) -> None:
        self._run_group = run_group
        self.groups_per_step = groups_per_step
        self.max_async_level = max_async_level
        self.max_off_policy_steps = max_off_policy_steps
        self.last_step = last_step
        self.max_failed_groups = max_failed_groups
        self.max_filtered_groups = max_filtered_groups
        self.next_group = next_group
        self._wants = wants
        self._counts = PoolCounts()
        self.version = UNPUBLISHED
        self.step = 0
        self._again = sorted(pending)
        self._taken = 0
        self._failed_in_a_row = 0
        self._filtered_in_a_row = 0
        self._finished: list[asyncio.Task[Group]] = []
        self._news = asyncio.Event()
        self._flights: dict[asyncio.Task[Group], _Flight] = {}
        self._idle_since: float | None = time.monotonic()

    @property
    def pending(self) -> list[int]:
        """Groups begun and not yet handed out, and those to begin again."""
        return sorted([*(flight.index for flight in self._flights.values()), *self._again])

    def take_counts(self) -> PoolCounts:
        """Return what was counted since the last call."""
        self._end_idle()
        taken, self._counts = self._counts, PoolCounts()
        self._begin_idle()
        return taken

    def new_weights(self, version: int) -> None:
        """Note that the engine serves `version`; give up what became too old, and launch what it allows."""
        self.version = version
        self._give_up_old()
        self._launch()

    async def collect(self, step: int) -> list[Group]:
        """Return the groups of batch `step`, in order of their number."""
        self.step, self._taken = step, 0
        groups: list[Group] = []
        while len(groups) < self.groups_per_step:
            self._launch()
            group = await self._next()
            if self._accept(group):
                groups.append(group)
                self._taken += 1
            else:
                self._counts.dropped.append(group)
        # From here on, launches count towards the next batch.
        self.step, self._taken = step + 1, 0
        return sorted(groups, key=lambda group: group.index)

    async def close(self) -> None:
        """Abort what is in flight, and wait until it has ended."""
        tasks = list(self._flights)
        self._flights.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _next(self) -> Group:
        while not self._finished:
            self._news.clear()
            await self._news.wait()
        task = self._finished.pop(0)
        del self._flights[task]
        return task.result()

    def _launch(self) -> None:
        while self._may_launch():
            index = self._again.pop(0) if self._again else self._next_wanted()
            task = asyncio.create_task(self._run_group(index))
            self._flights[task] = _Flight(index, self.version)
            task.add_done_callback(self._done)
            self._end_idle()

    def _next_wanted(self) -> int:
        """Return the next group number, past those whose examples a filter does not want."""
        for index in range(self.next_group, self.next_group + MAX_SKIPPED):
            if self._wants is None or self._wants(index):
                self._counts.skipped += index - self.next_group
                self.next_group = index + 1
                return index
        raise RunError(
            f"the filters want none of the next {MAX_SKIPPED} groups: every example counts as solved",
            where="[[filters]]",
            next_step="the run is done; for a longer one add harder examples, or set solved_share above 0",
        )

    def _may_launch(self) -> bool:
        if self.version == UNPUBLISHED:
            return False  # the engine still serves the model it was started with, which is no version of this run
        slot = self._taken + len(self._flights)
        batch = self.step + slot // self.groups_per_step
        return batch < self.last_step and batch - self.max_async_level <= self.version

    def _done(self, task: asyncio.Task[Group]) -> None:
        if task in self._flights and not task.cancelled():
            self._finished.append(task)
            self._news.set()
        self._begin_idle()

    def _give_up_old(self) -> None:
        """Begin groups again that were begun under weights more than `max_off_policy_steps` versions old."""
        if self.max_off_policy_steps is None:
            return
        oldest = self.version - self.max_off_policy_steps
        for task, flight in list(self._flights.items()):
            if flight.version >= oldest or _is_broken(task):
                continue
            del self._flights[task]
            if task in self._finished:
                self._finished.remove(task)
                self._counts.expired += 1
            else:
                task.cancel()
                self._counts.cancelled += 1
            self._again.append(flight.index)
        self._again.sort()

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
        if group.filtered:
            self._counts.filtered += 1
            self._filtered_in_a_row += 1
            self._raise_if_all_filtered(group)
            return False
        self._filtered_in_a_row = 0
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

    def _raise_if_all_filtered(self, group: Group) -> None:
        if self._filtered_in_a_row < self.max_filtered_groups:
            return
        reasons = sorted({drop for drop in group.drops if drop is not None})
        raise RunError(
            f"the filters dropped {self._filtered_in_a_row} groups in a row; the last one for {', '.join(reasons)}",
            where=f"[[filters]], environment {group.environment.name!r}",
            next_step="widen the filters, choose easier or harder tasks, or raise orchestrator.max_filtered_groups; "
            "the batches so far are kept, `--resume` goes on from them",
        )

    def _begin_idle(self) -> None:
        if self._idle_since is None and all(task.done() for task in self._flights):
            self._idle_since = time.monotonic()

    def _end_idle(self) -> None:
        if self._idle_since is not None:
            self._counts.idle += time.monotonic() - self._idle_since
            self._idle_since = None


def _is_broken(task: asyncio.Task[Group]) -> bool:
    """Whether the task failed by a fault of the orchestrator itself, which must come out and not be begun again."""
    return task.done() and not task.cancelled() and task.exception() is not None
