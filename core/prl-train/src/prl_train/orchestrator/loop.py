"""The orchestrator's loop: collect groups, hand over batches, report what was trained."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from prl.contracts import Renderer
from prl.types import PrlError
from prl_train.config import OrchestratorSection
from prl_train.run import DeadStateError, Progress, RunFolder, StepBatch, write_json
from prl_train.run.files import write_text

from .evaluation import EvaluationPlan, Evaluations
from .groups import SAME, Group, GroupRunner
from .lag import LagMonitor
from .measure import step_metrics
from .pool import GroupPool
from .records import RecordThread
from .reporter import StepReporter
from .rollout_log import rollout_lines
from .sinks import SinkSet
from .step_clock import StepClock
from .weights import WeightFollower


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How the orchestrator ended: the number of batches made, and why it stopped before the last, if it did."""

    steps: int
    note: str = ""


class Orchestrator:
    """Runs groups against an engine and feeds the trainer through the run folder."""

    def __init__(
        self,
        settings: OrchestratorSection,
        *,
        runner: GroupRunner,
        folder: RunFolder,
        follower: WeightFollower,
        sinks: SinkSet,
        renderer: Renderer | None,
        evaluations: Sequence[EvaluationPlan] = (),
    ) -> None:
        self.settings = settings
        self.runner = runner
        self.folder = folder
        self.follower = follower
        self.sinks = sinks
        self.renderer = renderer
        self.reporter = StepReporter(folder, sinks)
        self.filters = runner.filters
        self._records = RecordThread()
        self._evaluations = Evaluations(evaluations, folder, renderer, self._evaluated)
        self._lag = LagMonitor()
        self._flat = 0
        self._first_reward: float | None = None

    async def run(self) -> Outcome:
        """Make all batches that are not there yet; return when the last one was trained and reported."""
        step, pool = self._resume()
        await asyncio.to_thread(self.reporter.begin)
        async with self._lag:
            batches = asyncio.create_task(self._make_batches(step, pool))
            weights = asyncio.create_task(self._follow(pool, until=self.settings.steps))
            try:
                outcome = await _first_result(batches, weights)
                if outcome.steps < self.settings.steps:
                    weights.cancel()
                    await self._follow(pool, until=outcome.steps)
                else:
                    await weights
                await self._evaluations.finish(self.follower.version)
                self._records.give(self.reporter.flush)
                await self._records.drain()
                return outcome
            finally:
                for task in (batches, weights):
                    task.cancel()
                await asyncio.gather(pool.close(), self._evaluations.close(), self._records.close())

    def _resume(self) -> tuple[int, GroupPool]:
        """Go on after the newest batch in the folder, with the groups that were begun before and are in no batch."""
        steps = self.folder.batch_steps()
        last = self.folder.read_batch(steps[-1]) if steps else None
        progress = Progress() if last is None else last.progress
        self._flat, self._first_reward = progress.flat_batches, progress.first_reward
        self.filters.restore(progress.filters)
        pool = GroupPool(
            self.runner.run,
            groups_per_step=self.settings.groups_per_step,
            max_async_level=self.settings.max_async_level,
            last_step=self.settings.steps,
            max_failed_groups=self.settings.max_failed_groups,
            max_off_policy_steps=self.settings.max_off_policy_steps,
            max_filtered_groups=self.settings.max_filtered_groups,
            wants=self._wants if self.filters.has_history else None,
            next_group=progress.next_group,
            pending=progress.pending,
        )
        pool.step = 0 if last is None else last.step + 1
        return pool.step, pool

    def _wants(self, group: int) -> bool:
        try:
            example = self.runner.schedule.task(group)[1]
        except PrlError:
            return True  # it is played, so that its rollouts record what is wrong
        return self.filters.wants(example.id, group)

    def _follow(self, pool: GroupPool, *, until: int) -> Coroutine[Any, Any, None]:
        def on_version(version: int) -> None:
            self._records.raise_if_failed()
            self._records.give(self.reporter.report)
            pool.new_weights(version)
            self._evaluations.new_weights(version)

        return self.follower.follow(on_version, until=until)

    def _evaluated(self, version: int, values: dict[str, float]) -> None:
        self._records.give(self.reporter.evaluated, version, values)

    async def _make_batches(self, first: int, pool: GroupPool) -> Outcome:
        clock = StepClock()
        for step in range(first, self.settings.steps):
            clock.begin()
            groups = await pool.collect(step)
            counts = pool.take_counts()
            for group in sorted([*groups, *counts.dropped], key=lambda group: group.index):
                self.filters.note(group.rollouts)
            metrics = await asyncio.to_thread(step_metrics, groups, counts, step=step, seconds=clock.collected())
            self._note_signal(groups, metrics["reward"])
            metrics |= self._lag.take() | clock.measure(groups, counts)
            batch = self._batch(step, groups, metrics, pool)
            await asyncio.to_thread(self._write, batch, groups, counts.dropped)
            clock.written()
            self._records.give(self.sinks.rollouts, step, [rollout for group in groups for rollout in group.rollouts])
            if self._flat >= self.settings.dead_after:
                return self._stop_flat(step, metrics["reward"])
        return Outcome(steps=self.settings.steps)

    def _batch(self, step: int, groups: Sequence[Group], metrics: dict[str, float], pool: GroupPool) -> StepBatch:
        progress = Progress(
            next_group=pool.next_group,
            pending=pool.pending,
            flat_batches=self._flat,
            first_reward=self._first_reward,
            filters=self.filters.state(),
        )
        samples = [sample for group in groups for sample in group.samples()]
        return StepBatch(step=step, samples=samples, metrics=metrics, progress=progress)

    def _write(self, batch: StepBatch, groups: Sequence[Group], dropped: Sequence[Group]) -> None:
        lines = rollout_lines(groups, self.renderer, dropped=dropped)
        write_text(self.folder.rollout_path(batch.step), lines)
        self.folder.write_batch(batch)
        write_json(self.folder.progress, {"batches": batch.step + 1, "next_group": batch.progress.next_group})
        if self.settings.keep_rollouts is not None:
            self.folder.prune_rollouts(batch.step + 1 - self.settings.keep_rollouts)

    def _note_signal(self, groups: Sequence[Group], reward: float) -> None:
        if self._first_reward is None:
            self._first_reward = reward
        self._flat = 0 if any(group.has_signal for group in groups) else self._flat + 1

    def _stop_flat(self, step: int, reward: float) -> Outcome:
        """Stop a run whose rewards no longer differ: solved where the reward rose since the start, dead otherwise."""
        first = self._first_reward or 0.0
        if reward > first + SAME:
            note = f"stopped at step {step}: every group of {self._flat} batches in a row got one reward, {reward:.3f} "
            return Outcome(steps=step + 1, note=note + f"(it was {first:.3f} at the start); nothing is left to learn")
        raise DeadStateError(
            f"{self._flat} batches in a row had no learning signal: within each group all rewards are equal "
            f"(mean reward {reward:.3f}, {first:.3f} at the start)",
            where=f"step {step}, {self.folder.rollout_path(step)}",
            next_step="read the rollouts: a reward that is always the same usually means malformed answers or a task "
            "far too hard. Warm up longer, lower trainer.lr, or choose an easier task",
        )


async def _first_result(batches: asyncio.Task[Outcome], weights: asyncio.Task[None]) -> Outcome:
    """Wait for the batches; a failure of the weights' follower ends the wait at once."""
    await asyncio.wait({batches, weights}, return_when=asyncio.FIRST_COMPLETED)
    if not batches.done():
        weights.result()
    return await batches
