"""Groups: the rollouts of one task, their advantages, and their training samples."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from prl.contracts import RolloutExecutor, RolloutJob
from prl.trajectory import InterleaveResult, interleave_rollout
from prl.types import AlignmentError, Break, Message, PrlError, Rollout, TrainingSample
from prl_train.algo import grpo_advantages

from .answers import check_reward
from .filtering import FilterSet
from .play import begin_rollout
from .schedule import AnyEnvironment, Schedule

SAME = 1e-9
"""Rewards closer than this are the same."""

Played = tuple[Rollout, InterleaveResult]
Finisher = Callable[[Rollout, InterleaveResult], Awaitable[InterleaveResult]]
"""Completes the samples of a rollout, with a teacher's log-probabilities or with images."""


@dataclass(frozen=True)
class Group:
    """The finished rollouts of one task; lists run parallel to `rollouts`.

    `drops` says of each rollout which filter drops it from training, and why ("filter/reason"), or None.
    """

    index: int
    environment: AnyEnvironment
    rollouts: list[Rollout]
    results: list[InterleaveResult]
    advantages: list[float]
    drops: list[str | None] = field(default_factory=list)

    @cached_property
    def valid(self) -> list[Rollout]:
        """The rollouts without an error."""
        return [rollout for rollout in self.rollouts if rollout.error is None]

    @property
    def failed(self) -> bool:
        """Whether every rollout broke."""
        return not self.valid

    @cached_property
    def kept(self) -> list[bool]:
        """Per rollout: whether it may be trained on; it broke or was dropped otherwise."""
        drops = self.drops or [None] * len(self.rollouts)
        return [rollout.error is None and drop is None for rollout, drop in zip(self.rollouts, drops, strict=True)]

    @property
    def filtered(self) -> bool:
        """Whether filters dropped every rollout that did not break."""
        return bool(self.valid) and not any(self.kept)

    @property
    def has_signal(self) -> bool:
        """Whether any advantage of what is kept differs from zero."""
        kept = zip(self.advantages, self.kept, strict=True)
        return any(abs(advantage) > SAME for advantage, keep in kept if keep)

    @property
    def oldest_version(self) -> int | None:
        """The oldest weights that any token of the group was sampled by; None where nothing was sampled.

        What another model said is of no weights of ours, and never too old.
        """
        turns = [turn for rollout in self.valid for turn in rollout.turns if turn.logprobs is not None]
        return min((turn.weight_version for turn in turns), default=None)

    @property
    def breaks(self) -> list[Break]:
        """The breaks of the valid rollouts."""
        return [b for rollout, result in self._pairs() if rollout.error is None for b in result.breaks]

    def samples(self) -> list[TrainingSample]:
        """Return the trainable samples; none where the group has no learning signal."""
        if not self.has_signal:
            return []
        rows = zip(self.kept, self.results, self.advantages, strict=True)
        return [
            replace(sample, advantage=advantage)
            for keep, result, advantage in rows
            if keep
            for sample in result.samples
        ]

    def _pairs(self) -> list[tuple[Rollout, InterleaveResult]]:
        return list(zip(self.rollouts, self.results, strict=True))


def _finite(reward: Any) -> float:
    """Return the reward of a broken rollout; what is no number counts as none."""
    return float(reward) if isinstance(reward, int | float) and math.isfinite(reward) else 0.0


def group_advantages(rollouts: list[Rollout], *, std: bool) -> list[float]:
    """Return one advantage per rollout, compared among those without an error; a broken rollout gets 0.0."""
    valid = [rollout.reward for rollout in rollouts if rollout.error is None]
    if not valid or max(valid) - min(valid) < SAME:
        return [0.0] * len(rollouts)
    among_valid = iter(grpo_advantages(valid, std=std))
    return [next(among_valid) if rollout.error is None else 0.0 for rollout in rollouts]


def constant_advantages(rollouts: list[Rollout]) -> list[float]:
    """Return 1.0 for each rollout, for losses that read no advantages; a broken rollout gets 0.0."""
    return [1.0 if rollout.error is None else 0.0 for rollout in rollouts]


class GroupRunner:
    """Runs groups on an executor; at most `max_concurrency` rollouts are in flight over all groups.

    Each rollout's samples go through the `finishers` in order, as soon as it was played: beside the other rollouts, not
    after them. One that fails is recorded as the rollout's error. `expect` is told a task's opening messages before its
    first rollout; `compares` says whether advantages come from comparing siblings, or are all 1.
    """

    def __init__(
        self,
        executor: RolloutExecutor,
        schedule: Schedule,
        *,
        group_size: int,
        max_concurrency: int,
        advantage_std: bool,
        current_version: Callable[[], int],
        decode: Callable[[list[int]], str] | None = None,
        filters: FilterSet | None = None,
        evaluation: str | None = None,
        finishers: Sequence[Finisher] = (),
        compares: bool = True,
        expect: Callable[[Sequence[Message]], None] | None = None,
    ) -> None:
        self.executor = executor
        self.schedule = schedule
        self.group_size = group_size
        self.advantage_std = advantage_std
        self.current_version = current_version
        self.decode = decode
        self.filters = filters or FilterSet({})
        self.evaluation = evaluation
        self.finishers = tuple(finishers)
        self.compares = compares
        self.expect = expect
        self._room = asyncio.Semaphore(max_concurrency)

    async def run(self, index: int) -> Group:
        """Play a group to its end. An error in one rollout is recorded in it and spares the others."""
        environment = self.schedule.environment(index)
        # What breaks here breaks again in the rollouts, which record it.
        await asyncio.gather(self._announce(index), return_exceptions=True)
        tasks = [asyncio.create_task(self._play(index, member)) for member in range(self.group_size)]
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)  # an agent's processes are ended before this group counts as ended
            raise
        played = [self._finished(index, member, task) for member, task in enumerate(tasks)]
        return await asyncio.to_thread(self._assemble, index, environment, played)

    async def _announce(self, index: int) -> None:
        if self.expect is not None:
            self.expect(self.schedule.task(index)[1].messages)

    async def _play(self, index: int, member: int) -> Played:
        async with self._room:
            # The salt is fixed when the rollout starts: its later turns extend its own keys, no other rollout's.
            rollout = await self.executor.play(self._job(index, member))
        return await self._finish(rollout)

    async def _finish(self, rollout: Rollout) -> Played:
        """Return a rollout with its samples, which the finishers complete; one that has none is a broken one."""
        try:
            check_reward(rollout.reward, f"environment {rollout.environment!r}, example {rollout.example_id!r}")
            result = await asyncio.to_thread(interleave_rollout, rollout, decode=self.decode)
            for finish in self.finishers if rollout.error is None else ():
                result = await finish(rollout, result)
        except PrlError as error:
            return await asyncio.to_thread(self._broken, rollout, error)
        return rollout, result

    def _broken(self, rollout: Rollout, error: PrlError) -> Played:
        """Return the rollout with the first of its errors, and with masks of zeros."""
        said = rollout.error or f"{type(error).__name__}: {error}"
        broken = replace(rollout, error=said, stop_reason="error", reward=_finite(rollout.reward))
        try:
            return broken, interleave_rollout(broken, decode=self.decode)
        except AlignmentError:  # its turns make no sample; they are in the rollout
            return broken, InterleaveResult([], [], [], [])

    def _job(self, index: int, member: int) -> RolloutJob:
        salt = f"weights-{self.current_version()}"
        return RolloutJob(group=index, member=member, cache_salt=salt, evaluation=self.evaluation)

    def _finished(self, index: int, member: int, task: asyncio.Task[Played]) -> Played:
        """Return what was played; where the executor itself failed, a rollout without turns that says so."""
        if task.cancelled():
            error: BaseException | None = asyncio.CancelledError("the executor gave the rollout up")
        else:
            error = task.exception()
        if error is None:
            return task.result()
        live = begin_rollout(self._job(index, member), self.schedule)
        return (broken := live.finished(error)), interleave_rollout(broken)

    def _assemble(self, index: int, environment: AnyEnvironment, played: list[Played]) -> Group:
        rollouts, results = [rollout for rollout, _ in played], [result for _, result in played]
        advantages = (
            group_advantages(rollouts, std=self.advantage_std) if self.compares else constant_advantages(rollouts)
        )
        return Group(index, environment, rollouts, results, advantages, self.filters.judge(rollouts))
