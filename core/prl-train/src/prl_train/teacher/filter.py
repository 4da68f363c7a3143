"""Which rollouts of a teacher are worth imitating."""

from __future__ import annotations

from collections.abc import Sequence

from prl.types import Rollout

from .config import TeacherRolloutsSection


class TeacherFilter:
    """Drops rollouts whose reward is too low, and those that ran out of tokens or turns."""

    name = "teacher"

    def __init__(self, section: TeacherRolloutsSection) -> None:
        self._section = section

    def judge(self, rollouts: Sequence[Rollout]) -> list[str | None]:
        """Return per rollout why it is not imitated, or None."""
        return [self._reason(rollout) for rollout in rollouts]

    def _reason(self, rollout: Rollout) -> str | None:
        if not rollout.turns:
            return "empty"
        if rollout.is_truncated and not self._section.keep_truncated:
            return "truncated"
        least = self._section.min_reward
        return "reward" if least is not None and rollout.reward < least else None
