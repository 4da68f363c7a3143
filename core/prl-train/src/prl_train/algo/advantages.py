"""Advantages of a group of rollouts of one task."""

from __future__ import annotations

import math
from collections.abc import Sequence

from prl_train.errors import TrainingError

_EPSILON = 1e-6


def grpo_advantages(rewards: Sequence[float], *, std: bool = False) -> list[float]:
    """Return each reward minus the group's mean; with `std`, divided by the group's population standard deviation.

    Without `std` (the default) a group's weight in the loss follows how far its rewards are apart (arXiv 2503.20783 on
    why the division biases towards easy and hard tasks). A group of equal rewards has advantages of exactly 0. Raises
    `TrainingError` for a reward that is not finite: every advantage of its group would be none.
    """
    if not rewards:
        return []
    bad = next((place for place, reward in enumerate(rewards) if not math.isfinite(reward)), None)
    if bad is not None:
        raise TrainingError(
            f"reward {bad} of {len(rewards)} is {rewards[bad]}",
            where="a group of rollouts",
            next_step="leave the rollout out, or correct what gave the reward",
        )
    if all(reward == rewards[0] for reward in rewards):
        return [0.0] * len(rewards)
    mean = math.fsum(rewards) / len(rewards)
    centred = [reward - mean for reward in rewards]
    if not std:
        return centred
    deviation = math.sqrt(math.fsum(value * value for value in centred) / len(centred))
    return [value / (deviation + _EPSILON) for value in centred]
