"""The orchestrator's loop: collect groups, hand over batches, report what was trained."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from prl.contracts import Renderer
from prl_train.config import OrchestratorSection
from prl_train.run import DeadStateError, Progress, RunFolder, StepBatch, write_json
from prl_train.run.files import write_text

from .groups import SAME, Group, GroupRunner
from .measure import step_metrics
from .pool import GroupPool
from .reporter import StepReporter
from .rollout_log import rollout_lines
from .sinks import SinkSet
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
    ) -> None:
        self.settings = settings
        self.runner = runner
        self.folder = folder
        self.follower = follower
        self.sinks = sinks
        self.renderer = renderer
        self.reporter = StepReporter(folder, sinks)
        self._flat = 0
        self._first_reward: float | None = None

    async def run(self) -> Outcome:
        """Make all batches that are not there yet; return when the last one was trained and reported."""
        step, pool = self._resume()
        batches = asyncio.create_task(self._make_batches(step, pool))
        weights = asyncio.create_task(self._follow(pool, until=self.settings.steps))
        try:
            outcome = await _first_result(batches, weights)
            if outcome.steps < self.settings.steps:
                weights.cancel()
                await self._follow(pool, until=outcome.steps)
            else:
                await weights
            self.reporter.report()
            return outcome
        finally:
            pool.close()
            for task in (batches, weights):
                task.cancel()

    def _resume(self) -> tuple[int, GroupPool]:
        """Go on after the newest batch in the folder, with the groups that were begun before and are in no batch."""
        steps = self.folder.batch_steps()
        last = self.folder.read_batch(steps[-1]) if steps else None
        progress = Progress() if last is None else last.progress
        self._flat, self._first_reward = progress.flat_batches, progress.first_reward
        pool = GroupPool(
            self.runner.run,
            groups_per_step=self.settings.groups_per_step,
            max_async_level=self.settings.max_async_level,
            last_step=self.settings.steps,
            max_failed_groups=self.settings.max_failed_groups,
            next_group=progress.next_group,
            pending=progress.pending,
        )
        pool.step = 0 if last is None else last.step + 1
        return pool.step, pool

    def _follow(self, pool: GroupPool, *, until: int) -> Coroutine[Any, Any, None]:
        def on_version(version: int) -> None:
            self.reporter.report()
            pool.new_weights(version)

        return self.follower.follow(on_version, until=until)

    async def _make_batches(self, first: int, pool: GroupPool) -> Outcome:
        for step in range(first, self.settings.steps):
            started = time.monotonic()
            groups = await pool.collect(step)
            metrics = step_metrics(groups, pool.take_counts(), step=step, seconds=time.monotonic() - started)
            self._note_signal(groups, metrics["reward"])
            progress = Progress(
                next_group=pool.next_group,
                pending=pool.pending,
                flat_batches=self._flat,
                first_reward=self._first_reward,
            )
            samples = [sample for group in groups for sample in group.samples()]
            batch = StepBatch(step=step, samples=samples, metrics=metrics, progress=progress)
            await asyncio.to_thread(self._write, batch, groups)
            self.sinks.rollouts(step, [rollout for group in groups for rollout in group.rollouts])
            if self._flat >= self.settings.dead_after:
                return self._stop_flat(step, metrics["reward"])
        return Outcome(steps=self.settings.steps)

    def _write(self, batch: StepBatch, groups: Sequence[Group]) -> None:
        write_text(self.folder.rollout_path(batch.step), rollout_lines(groups, self.renderer))
        self.folder.write_batch(batch)
        write_json(self.folder.progress, {"batches": batch.step + 1, "next_group": batch.progress.next_group})

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
