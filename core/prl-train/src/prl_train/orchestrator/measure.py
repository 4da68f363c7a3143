"""The metrics of one step's rollouts: over all environments, and for each."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from statistics import fmean, pstdev

from prl.trajectory import InterleaveResult
from prl.types import Rollout

from .groups import Group
from .pool import PoolCounts

Pair = tuple[Rollout, InterleaveResult]


def step_metrics(groups: Sequence[Group], counts: PoolCounts, *, step: int, seconds: float) -> dict[str, float]:
    """Return the step's rollout metrics; `breaks/<cause>` stand beside their sum `breaks`.

    Figures without another word are over the batch's rollouts that did not break; `reward/played` is over those of
    dropped groups as well, so that it does not move with the filters.
    """
    pairs = [pair for group in groups for pair in _valid_pairs(group)]
    rollouts = [rollout for rollout, _ in pairs]
    played = [*groups, *counts.dropped]
    metrics = {
        **_rewards(rollouts),
        "reward/played": _mean(rollout.reward for group in played for rollout in group.valid),
        "rollouts": float(len(rollouts)),
        "rollouts/errors": float(counts.errors),
        "rollouts/truncated": float(sum(rollout.is_truncated for rollout in rollouts)),
        "groups/no_signal": float(sum(not group.has_signal for group in groups)),
        "groups/stale": float(counts.stale),
        "groups/failed": float(counts.failed),
        "groups/filtered": float(counts.filtered),
        "groups/cancelled": float(counts.cancelled),
        "groups/expired": float(counts.expired),
        "groups/skipped": float(counts.skipped),
        "turns_per_rollout": _mean(len(rollout.turns) for rollout in rollouts),
        "time/rollouts_s": seconds,
    }
    metrics |= _lag(groups, step) | _tokens(rollouts) | _interleaving(pairs)
    return metrics | _errors(played) | _drops(played) | _environments(groups, played)


def _rewards(rollouts: Sequence[Rollout]) -> dict[str, float]:
    rewards = [rollout.reward for rollout in rollouts]
    if not rewards:
        return {}
    return {
        "reward": fmean(rewards),
        "reward/std": pstdev(rewards),
        "reward/min": min(rewards),
        "reward/max": max(rewards),
    }


def _lag(groups: Sequence[Group], step: int) -> dict[str, float]:
    turns = [turn for group in groups for rollout in group.valid for turn in rollout.turns]
    lags = [step - turn.weight_version for turn in turns if turn.logprobs is not None]
    return {"off_policy_lag": float(max(lags, default=0)), "off_policy_lag/mean": _mean(lags)}


def _tokens(rollouts: Sequence[Rollout]) -> dict[str, float]:
    turns = [turn for rollout in rollouts for turn in rollout.turns]
    return {
        "tokens/completion": float(_completion_tokens(rollouts)),
        "tokens/prompt": float(sum(len(turn.prompt_ids) for turn in turns)),
        "invalid_tool_calls": float(sum(len(turn.parsed.invalid_tool_calls) for turn in turns if turn.parsed)),
    }


def _interleaving(pairs: Sequence[Pair]) -> dict[str, float]:
    samples = [len(result.samples) for rollout, result in pairs if rollout.turns]
    causes = Counter(str(found.cause) for _, result in pairs for found in result.breaks)
    metrics = {
        "samples_per_rollout": _mean(samples),
        "breaks": float(causes.total()),
        "ambiguous_prefixes": float(sum(len(result.warnings) for _, result in pairs)),
    }
    return metrics | _counted("breaks", causes)


def _errors(groups: Iterable[Group]) -> dict[str, float]:
    """Return how many rollouts broke, by the type of the error."""
    errors = [rollout.error for group in groups for rollout in group.rollouts if rollout.error is not None]
    return _counted("errors", Counter(error.split(":", 1)[0] for error in errors))


def _drops(groups: Iterable[Group]) -> dict[str, float]:
    """Return how many rollouts each filter dropped, by its reason."""
    return _counted("filters", Counter(drop for group in groups for drop in group.drops if drop is not None))


def _environments(groups: Sequence[Group], played: Sequence[Group]) -> dict[str, float]:
    """Return `env/<name>/...`: the environment's own metrics, and its share of the run's.

    A metric of its own that has the name of one of the run's is `env/<name>/own/...`: neither hides the other.
    """
    metrics: dict[str, float] = {}
    for name in sorted({group.environment.name for group in played}):
        mine = [pair for group in groups if group.environment.name == name for pair in _valid_pairs(group)]
        all_mine = [group for group in played if group.environment.name == name]
        shared = _environment(mine) | _errors(all_mine) | _drops(all_mine)
        own = {f"own/{key}" if key in shared else key: value for key, value in _own_metrics(mine).items()}
        values = own | shared
        metrics |= {f"env/{name}/{key}": value for key, value in values.items()}
    return metrics


def _environment(pairs: Sequence[Pair]) -> dict[str, float]:
    rollouts = [rollout for rollout, _ in pairs]
    if not rollouts:
        return {}
    return {
        **_rewards(rollouts),
        **_interleaving(pairs),
        "rollouts": float(len(rollouts)),
        "rollouts/truncated": float(sum(rollout.is_truncated for rollout in rollouts)),
        "turns_per_rollout": _mean(len(rollout.turns) for rollout in rollouts),
        "tokens_per_rollout": _completion_tokens(rollouts) / len(rollouts),
    }


def _own_metrics(pairs: Sequence[Pair]) -> dict[str, float]:
    values: dict[str, list[float]] = defaultdict(list)
    for rollout, _ in pairs:
        for name, value in rollout.metrics.items():
            values[name].append(value)
    return {name: fmean(numbers) for name, numbers in sorted(values.items())}


def _valid_pairs(group: Group) -> list[Pair]:
    pairs = zip(group.rollouts, group.results, strict=True)
    return [(rollout, result) for rollout, result in pairs if rollout.error is None]


def _completion_tokens(rollouts: Iterable[Rollout]) -> int:
    return sum(len(turn.completion_ids) for rollout in rollouts for turn in rollout.turns)


def _counted(prefix: str, counts: Counter[str]) -> dict[str, float]:
    return {f"{prefix}/{name}": float(count) for name, count in sorted(counts.items())}


def _mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return fmean(numbers) if numbers else 0.0
