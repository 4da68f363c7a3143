"""Groups: the rollouts of one task, their advantages, and their training samples."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

from prl.contracts import Environment, Example
from prl.trajectory import InterleaveResult, interleave_rollout
from prl.types import Break, Rollout, TrainingSample
from prl_train.algo import grpo_advantages

from .play import LiveRollout, RolloutPlayer
from .schedule import Schedule

SAME = 1e-9
"""Rewards closer than this are the same."""


@dataclass(frozen=True)
class Group:
    """The finished rollouts of one task; lists run parallel to `rollouts`."""

    index: int
    environment: Environment
    rollouts: list[Rollout]
    results: list[InterleaveResult]
    advantages: list[float]

    @cached_property
    def valid(self) -> list[Rollout]:
        """The rollouts without an error."""
        return [rollout for rollout in self.rollouts if rollout.error is None]

    @property
    def failed(self) -> bool:
        """Whether every rollout broke."""
        return not self.valid

    @property
    def has_signal(self) -> bool:
        """Whether any advantage differs from zero."""
        return any(abs(advantage) > SAME for advantage in self.advantages)

    @property
    def oldest_version(self) -> int | None:
        """The oldest weights that any token of the group was sampled by; None where nothing was sampled."""
        return min((turn.weight_version for rollout in self.valid for turn in rollout.turns), default=None)

    @property
    def breaks(self) -> list[Break]:
        """The breaks of the valid rollouts."""
        return [b for rollout, result in self._pairs() if rollout.error is None for b in result.breaks]

    def samples(self) -> list[TrainingSample]:
        """Return the trainable samples; none where the group has no learning signal."""
        if not self.has_signal:
            return []
        rows = zip(self.rollouts, self.results, self.advantages, strict=True)
        return [
            replace(sample, advantage=advantage)
            for rollout, result, advantage in rows
            if rollout.error is None
            for sample in result.samples
        ]

    def _pairs(self) -> list[tuple[Rollout, InterleaveResult]]:
        return list(zip(self.rollouts, self.results, strict=True))


def group_advantages(rollouts: list[Rollout], *, std: bool) -> list[float]:
    """Return one advantage per rollout, compared among those without an error; a broken rollout gets 0.0."""
    valid = [rollout.reward for rollout in rollouts if rollout.error is None]
    if not valid or max(valid) - min(valid) < SAME:
        return [0.0] * len(rollouts)
    among_valid = iter(grpo_advantages(valid, std=std))
    return [next(among_valid) if rollout.error is None else 0.0 for rollout in rollouts]


class GroupRunner:
    """Runs groups; at most `max_concurrency` rollouts are in flight over all groups."""

    def __init__(
        self,
        player: RolloutPlayer,
        schedule: Schedule,
        *,
        group_size: int,
        max_concurrency: int,
        advantage_std: bool,
        current_version: Callable[[], int],
        decode: Callable[[list[int]], str] | None = None,
    ) -> None:
        self.player = player
        self.schedule = schedule
        self.group_size = group_size
        self.advantage_std = advantage_std
        self.current_version = current_version
        self.decode = decode
        self._room = asyncio.Semaphore(max_concurrency)

    async def run(self, index: int) -> Group:
        """Play a group to its end. An error in one rollout is recorded in it and spares the others."""
        environment, example = self.schedule.task(index)
        lives = [self._live(index, member, environment, example) for member in range(self.group_size)]
        tasks = [asyncio.create_task(self._play(live, environment, example)) for live in lives]
        try:
            await asyncio.wait(tasks)
        finally:
            for task in tasks:
                task.cancel()
        rollouts = [live.finished(task.exception()) for live, task in zip(lives, tasks, strict=True)]
        return await asyncio.to_thread(self._assemble, index, environment, rollouts)

    def _live(self, index: int, member: int, environment: Environment, example: Example) -> LiveRollout:
        return LiveRollout(
            trajectory_id=f"group-{index:06d}/{member:03d}",
            group_id=f"group-{index:06d}",
            environment=environment.name,
            example_id=example.id,
            seed=self.schedule.rollout_seed(index, member),
        )

    async def _play(self, live: LiveRollout, environment: Environment, example: Example) -> None:
        async with self._room:
            # The salt is fixed when the rollout starts: its later turns extend its own keys, no other rollout's.
            await self.player.play(live, environment, example, f"weights-{self.current_version()}")

    def _assemble(self, index: int, environment: Environment, rollouts: list[Rollout]) -> Group:
        results = [interleave_rollout(rollout, decode=self.decode) for rollout in rollouts]
        return Group(index, environment, rollouts, results, group_advantages(rollouts, std=self.advantage_std))
