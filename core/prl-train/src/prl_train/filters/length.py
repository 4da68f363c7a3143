"""`length`: rollouts that are too short, too long or cut off."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, model_validator

from prl.types import Rollout


class LengthOptions(BaseModel):
    """Limits in tokens; those that are absent do not count."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    min_completion_tokens: PositiveInt | None = Field(default=None, description="fewest sampled tokens of a rollout")
    max_completion_tokens: PositiveInt | None = Field(default=None, description="most sampled tokens of a rollout")
    max_total_tokens: PositiveInt | None = Field(
        default=None, description="most tokens of a rollout's longest turn, prompt and completion"
    )
    truncated: bool = Field(default=False, description="drop rollouts that were cut off")

    @model_validator(mode="after")
    def _does_something(self) -> LengthOptions:
        limits = (self.min_completion_tokens, self.max_completion_tokens, self.max_total_tokens)
        if not self.truncated and all(limit is None for limit in limits):
            raise ValueError("set a limit, or `truncated = true`: this filter drops nothing")
        if None not in limits[:2] and (self.min_completion_tokens or 0) > (self.max_completion_tokens or 0):
            raise ValueError("`min_completion_tokens` must not be above `max_completion_tokens`")
        return self


class LengthFilter:
    """Judges each rollout by itself."""

    name = "length"

    def __init__(self, options: LengthOptions) -> None:
        self.options = options

    def judge(self, rollouts: Sequence[Rollout]) -> Sequence[str | None]:
        """Drop the rollouts outside the limits."""
        return [self._reason(rollout) for rollout in rollouts]

    def _reason(self, rollout: Rollout) -> str | None:
        options = self.options
        sampled = sum(len(turn.completion_ids) for turn in rollout.turns)
        total = max((len(turn.prompt_ids) + len(turn.completion_ids) for turn in rollout.turns), default=0)
        if options.truncated and rollout.is_truncated:
            return "truncated"
        if options.min_completion_tokens is not None and sampled < options.min_completion_tokens:
            return "too_short"
        if options.max_completion_tokens is not None and sampled > options.max_completion_tokens:
            return "too_long"
        if options.max_total_tokens is not None and total > options.max_total_tokens:
            return "too_long"
        return None


def create(options: LengthOptions) -> LengthFilter:
    """Create the filter."""
    return LengthFilter(options)
