"""Evaluations beside training: the same examples every so many steps, never trained on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from prl.contracts import Renderer
from prl_train.run import RunFolder, write_json
from prl_train.run.files import write_text
from prl_train.run.metrics import EVALUATION

from .groups import Group, GroupRunner
from .rollout_log import rollout_lines


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationPlan:
    """When an evaluation runs, and on what: `runner` plays example n as its group n, `samples` times."""

    name: str
    runner: GroupRunner
    examples: int
    every: int
    at_start: bool = True
    at_end: bool = True
    solved_reward: float = 1.0
    keep_rollouts: int | None = None


class Evaluation:
    """One plan in the course of a run. It runs once at a time; what comes due meanwhile waits, the newest alone."""

    def __init__(
        self,
        plan: EvaluationPlan,
        folder: RunFolder,
        renderer: Renderer | None,
        on_result: Callable[[int, dict[str, float]], None],
    ) -> None:
        self.plan = plan
        self.folder = folder
        self.renderer = renderer
        self.on_result = on_result
        self._done = folder.evaluated_steps(plan.name)
        self._last_due = max(self._done, default=None)
        self._waiting: int | None = None
        self._skipped = 0
        self._task: asyncio.Task[None] | None = None

    def new_weights(self, version: int) -> None:
        """Begin where the plan says so; versions may be left out, so what counts is a multiple that was passed."""
        if self._last_due is None:
            due = self.plan.at_start if version == 0 else version >= self.plan.every
        else:
            due = version // self.plan.every > self._last_due // self.plan.every
        if self._last_due is None or due:
            self._last_due = version
        if due:
            self._ask(version)

    async def finish(self, version: int) -> None:
        """Evaluate the last weights, where the plan says so, and wait for what runs."""
        if self.plan.at_end:
            self._ask(version)
        while self._task is not None:
            await self._task

    async def close(self) -> None:
        """Abort what runs; a resumed run does it again."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def raise_if_failed(self) -> None:
        """Raise what ended the evaluation: a fault of the run itself, such as a full disk."""
        if self._task is not None and self._task.done():
            self._task.result()

    def _ask(self, version: int) -> None:
        if version in self._done:
            return
        if self._waiting is not None and self._waiting != version:
            self._skipped += 1
        self._waiting = version
        if self._task is None:
            self._task = asyncio.create_task(self._work())

    async def _work(self) -> None:
        while self._waiting is not None:
            version, self._waiting = self._waiting, None
            skipped, self._skipped = self._skipped, 0
            if version not in self._done:
                await self._evaluate(version, skipped)
        self._task = None

    async def _evaluate(self, version: int, skipped: int) -> None:
        started = time.monotonic()
        plan = self.plan
        groups = await asyncio.gather(*(plan.runner.run(index) for index in range(plan.examples)))
        values = evaluation_metrics(groups, plan.solved_reward)
        values |= {"step": float(version), "time_s": time.monotonic() - started, "skipped": float(skipped)}
        named = {f"{EVALUATION}{plan.name}/{key}": value for key, value in values.items()}
        await asyncio.to_thread(self._write, version, groups, named)
        self._done.append(version)
        self.on_result(version, named)

    def _write(self, version: int, groups: Sequence[Group], values: Mapping[str, float]) -> None:
        write_text(self.folder.evaluation_rollouts(self.plan.name, version), rollout_lines(groups, self.renderer))
        write_json(self.folder.evaluation_path(self.plan.name, version), dict(values))
        if self.plan.keep_rollouts is not None:
            self.folder.prune_evaluation_rollouts(self.plan.name, self.plan.keep_rollouts)


class Evaluations:
    """All evaluations of a run; with none of them, nothing happens. `on_result` takes (version, metrics) of each."""

    def __init__(
        self,
        plans: Sequence[EvaluationPlan],
        folder: RunFolder,
        renderer: Renderer | None,
        on_result: Callable[[int, dict[str, float]], None],
    ) -> None:
        self._all = [Evaluation(plan, folder, renderer, on_result) for plan in plans]

    def new_weights(self, version: int) -> None:
        """Begin what is due; raise what ended an evaluation."""
        for one in self._all:
            one.raise_if_failed()
            one.new_weights(version)

    async def finish(self, version: int) -> None:
        """Evaluate the last weights and wait for what runs."""
        await asyncio.gather(*(one.finish(version) for one in self._all))

    async def close(self) -> None:
        """Abort what runs."""
        await asyncio.gather(*(one.close() for one in self._all))


def evaluation_metrics(groups: Sequence[Group], solved_reward: float) -> dict[str, float]:
    """Return the figures of one evaluation over its examples.

    `avg@k` is the mean reward over all rollouts, `pass@k` the share of examples of which any of the k rollouts earned
    `solved_reward`; rollouts that broke are in neither, and examples of which all broke are left out. `weights/...` are
    the versions that the tokens were sampled by: an engine that gets new weights meanwhile goes on with them.
    """
    rollouts = [rollout for group in groups for rollout in group.valid]
    played = [group for group in groups if group.valid]
    versions = [turn.weight_version for rollout in rollouts for turn in rollout.turns]
    size = max((len(group.rollouts) for group in groups), default=0)
    values = {
        "rollouts": float(len(rollouts)),
        "errors": float(sum(len(group.rollouts) - len(group.valid) for group in groups)),
    }
    if not rollouts:
        return values
    solved = [any(rollout.reward >= solved_reward for rollout in group.valid) for group in played]
    return values | {
        f"avg@{size}": fmean(fmean(rollout.reward for rollout in group.valid) for group in played),
        f"pass@{size}": fmean(solved),
        "reward": fmean(rollout.reward for rollout in rollouts),
        "truncated": fmean(rollout.is_truncated for rollout in rollouts),
        "turns_per_rollout": fmean(len(rollout.turns) for rollout in rollouts),
        "tokens_per_rollout": sum(len(t.completion_ids) for r in rollouts for t in r.turns) / len(rollouts),
        **({"weights/oldest": float(min(versions)), "weights/newest": float(max(versions))} if versions else {}),
    }
