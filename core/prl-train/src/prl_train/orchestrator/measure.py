"""The metrics of one step's rollouts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from statistics import fmean

from prl.types import Rollout

from .groups import Group
from .pool import PoolCounts


def step_metrics(groups: Sequence[Group], counts: PoolCounts, *, step: int, seconds: float) -> dict[str, float]:
    """Return the step's rollout metrics; `breaks/<cause>` stand beside their sum `breaks`."""
    rollouts = [rollout for group in groups for rollout in group.valid]
    versions = [group.oldest_version for group in groups if group.oldest_version is not None]
    metrics = {
        "reward": _mean(rollout.reward for rollout in rollouts),
        "reward/min": min(rollout.reward for rollout in rollouts),
        "reward/max": max(rollout.reward for rollout in rollouts),
        "rollouts": float(len(rollouts)),
        "rollouts/errors": float(counts.errors),
        "rollouts/truncated": float(sum(rollout.is_truncated for rollout in rollouts)),
        "groups/no_signal": float(sum(not group.has_signal for group in groups)),
        "groups/stale": float(counts.stale),
        "groups/failed": float(counts.failed),
        "turns_per_rollout": _mean(len(rollout.turns) for rollout in rollouts),
        "off_policy_lag": float(max((step - version for version in versions), default=0)),
        "time/rollouts_s": seconds,
    }
    return metrics | _tokens(rollouts) | _interleaving(groups) | _environments(rollouts)


def _tokens(rollouts: Sequence[Rollout]) -> dict[str, float]:
    turns = [turn for rollout in rollouts for turn in rollout.turns]
    return {
        "tokens/completion": float(sum(len(turn.completion_ids) for turn in turns)),
        "tokens/prompt": float(sum(len(turn.prompt_ids) for turn in turns)),
        "invalid_tool_calls": float(sum(len(turn.parsed.invalid_tool_calls) for turn in turns if turn.parsed)),
    }


def _interleaving(groups: Sequence[Group]) -> dict[str, float]:
    samples = [
        len(result.samples)
        for group in groups
        for rollout, result in zip(group.rollouts, group.results, strict=True)
        if rollout.error is None and rollout.turns
    ]
    causes = Counter(str(found.cause) for group in groups for found in group.breaks)
    metrics = {"samples_per_rollout": _mean(samples), "breaks": float(causes.total())}
    return metrics | {f"breaks/{cause}": float(count) for cause, count in sorted(causes.items())}


def _environments(rollouts: Sequence[Rollout]) -> dict[str, float]:
    values: dict[str, list[float]] = defaultdict(list)
    for rollout in rollouts:
        values[f"env/{rollout.environment}/reward"].append(rollout.reward)
        for name, value in rollout.metrics.items():
            values[f"env/{rollout.environment}/{name}"].append(value)
    return {name: fmean(numbers) for name, numbers in sorted(values.items())}


def _mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return fmean(numbers) if numbers else 0.0
