"""Which rollouts are worth training on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from prl.types import Rollout


@runtime_checkable
class RolloutFilter(Protocol):
    """Judges the finished rollouts of one task. The record's target is `create(options) -> RolloutFilter`."""

    name: str

    def judge(self, rollouts: Sequence[Rollout]) -> Sequence[str | None]:
        """Return one entry per rollout: None keeps it, a short reason drops it from training.

        Called with the whole group, so that a judgement may compare siblings. Advantages are computed before a filter
        runs: what is dropped still counts in its group's mean.
        """
        ...
