"""The figures that tell how a run went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from prl_train.run.metrics import is_evaluation

WINDOW = 5
"""Steps at either end over which the reward is averaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Figures over a run's metrics; None where no step measured one.

    `max_logprob_diff` is the largest |engine - trainer| log-probability of one sampled token, `samples_per_rollout` the
    largest of any step, `breaks` their sum.
    """

    steps: int
    reward_start: float | None
    reward_end: float | None
    samples_per_rollout: float | None
    breaks: int
    max_logprob_diff: float | None
    mismatch_kl: float | None
    errors: int


def summarise(rows: Sequence[dict[str, float]]) -> Summary:
    """Summarise metrics rows."""
    rewards = [row["reward"] for row in rows if "reward" in row]
    return Summary(
        steps=sum(not is_evaluation(row) for row in rows),
        reward_start=fmean(rewards[:WINDOW]) if rewards else None,
        reward_end=fmean(rewards[-WINDOW:]) if rewards else None,
        samples_per_rollout=_largest(rows, "samples_per_rollout"),
        breaks=int(sum(row.get("breaks", 0.0) for row in rows)),
        max_logprob_diff=_largest(rows, "max_logprob_diff"),
        mismatch_kl=_largest(rows, "mismatch_kl"),
        errors=int(sum(row.get("rollouts/errors", 0.0) for row in rows)),
    )


def _largest(rows: Sequence[dict[str, float]], name: str) -> float | None:
    return max((row[name] for row in rows if name in row), default=None)
