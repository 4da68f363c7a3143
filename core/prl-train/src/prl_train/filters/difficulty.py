"""`difficulty`: groups whose task is too easy or too hard, and examples that the model has solved."""

from __future__ import annotations

import random
from collections.abc import Sequence
from statistics import fmean
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, model_validator

from prl.types import Rollout

SAME = 1e-9


class DifficultyOptions(BaseModel):
    """Which mean rewards are worth training on, and when an example counts as solved."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    low: float | None = Field(default=None, description="drop groups whose mean reward is below: too hard")
    high: float | None = Field(default=None, description="drop groups whose mean reward is above: too easy")
    equal_rewards: bool = Field(
        default=True, description="drop groups whose rewards are all the same: they teach nothing"
    )
    solved_reward: float = Field(default=1.0, description="the mean reward from which a group counts as solved")
    solved_in_a_row: PositiveInt | None = Field(
        default=None, description="how often in a row an example is solved before it is played less; absent: never"
    )
    solved_share: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.1, description="share of a solved example's later groups that are still played"
    )

    @model_validator(mode="after")
    def _range(self) -> DifficultyOptions:
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError("`low` must not be above `high`")
        return self


class DifficultyFilter:
    """Judges a group by its mean reward, and remembers of each example how often in a row it was solved."""

    name = "difficulty"

    def __init__(self, options: DifficultyOptions) -> None:
        self.options = options
        self._solved: dict[str, int] = {}

    def judge(self, rollouts: Sequence[Rollout]) -> Sequence[str | None]:
        """Drop the whole group, or keep it."""
        reason = self._reason([rollout.reward for rollout in rollouts])
        return [reason] * len(rollouts)

    def wants(self, example_id: str, group: int) -> bool:
        """Whether the example is not solved yet, or this group is among the share that is played all the same."""
        needed = self.options.solved_in_a_row
        if needed is None or self._solved.get(example_id, 0) < needed:
            return True
        return random.Random(f"difficulty/{example_id}/{group}").random() < self.options.solved_share

    def note(self, rollouts: Sequence[Rollout]) -> None:
        """Count one more solved group of the example; one that is not solved begins the count anew."""
        example = rollouts[0].example_id
        if fmean(rollout.reward for rollout in rollouts) >= self.options.solved_reward - SAME:
            self._solved[example] = self._solved.get(example, 0) + 1
        else:
            self._solved.pop(example, None)

    def state(self) -> dict[str, Any]:
        """Return how often in a row each example was solved."""
        return {"solved": dict(self._solved)}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from `state`."""
        self._solved = {str(example): int(count) for example, count in state["solved"].items()}

    def _reason(self, rewards: Sequence[float]) -> str | None:
        options, mean = self.options, fmean(rewards)
        if options.low is not None and mean < options.low - SAME:
            return "too_hard"
        if options.high is not None and mean > options.high + SAME:
            return "too_easy"
        if options.equal_rewards and max(rewards) - min(rewards) < SAME:
            return "equal_rewards"
        return None


def create(options: DifficultyOptions) -> DifficultyFilter:
    """Create the filter."""
    return DifficultyFilter(options)
