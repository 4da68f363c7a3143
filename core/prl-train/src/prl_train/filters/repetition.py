"""`repetition`: rollouts in which the model says the same over and over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from prl.types import Rollout


class RepetitionOptions(BaseModel):
    """How much of one turn may repeat what stands in it already."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    ngram: PositiveInt = Field(default=8, description="tokens in a row that count as one phrase")
    max_share: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.5, description="greatest share of a turn's phrases that stood in it before"
    )
    min_tokens: PositiveInt = Field(default=64, description="turns shorter than this are not judged")


class RepetitionFilter:
    """Judges each rollout by its most repetitive turn."""

    name = "repetition"

    def __init__(self, options: RepetitionOptions) -> None:
        self.options = options

    def judge(self, rollouts: Sequence[Rollout]) -> Sequence[str | None]:
        """Drop the rollouts with a repetitive turn."""
        return ["repetitive" if self._is_repetitive(rollout) else None for rollout in rollouts]

    def _is_repetitive(self, rollout: Rollout) -> bool:
        options = self.options
        judged = (turn.completion_ids for turn in rollout.turns if len(turn.completion_ids) >= options.min_tokens)
        return any(repeated_share(ids, options.ngram) > options.max_share for ids in judged)


def repeated_share(ids: Sequence[int], ngram: int) -> float:
    """Return 0..1: the share of the n-grams that stood earlier in the same ids."""
    phrases = [tuple(ids[start : start + ngram]) for start in range(len(ids) - ngram + 1)]
    return 1.0 - len(set(phrases)) / len(phrases) if phrases else 0.0


def create(options: RepetitionOptions) -> RepetitionFilter:
    """Create the filter."""
    return RepetitionFilter(options)
