"""Advantages of a group of rollouts of one task."""

from __future__ import annotations

import math
from collections.abc import Sequence

_EPSILON = 1e-6


def grpo_advantages(rewards: Sequence[float], *, std: bool = False) -> list[float]:
    """Return each reward minus the group's mean; with `std`, divided by the group's population standard deviation.

    Without `std` (the default) a group's weight in the loss follows how far its rewards are apart (arXiv 2503.20783 on
    why the division biases towards easy and hard tasks). A group of equal rewards has advantages of exactly 0.
    """
    if not rewards:
        return []
    if all(reward == rewards[0] for reward in rewards):
        return [0.0] * len(rewards)
    mean = math.fsum(rewards) / len(rewards)
    centred = [reward - mean for reward in rewards]
    if not std:
        return centred
    deviation = math.sqrt(math.fsum(value * value for value in centred) / len(centred))
    return [value / (deviation + _EPSILON) for value in centred]
