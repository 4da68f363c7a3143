"""Training samples back to the turns they were joined from."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from prl.types import Message

from .records import RecordedSample, RecordedTurn


class SampledStretch(NamedTuple):
    """A turn's completion in its sample: tokens `start <= i < end`; `message` is its index, -1 where unknown."""

    start: int
    end: int
    message: int


def sampled_stretches(sample: RecordedSample, messages: Sequence[Message]) -> list[SampledStretch]:
    """Return where the sample's completions lie.

    By owner where owners were proven: the masks of a rollout that failed are all zero. By mask else: between two
    completions there is at least the generation prompt.
    """
    before = len(sample.prompt_ids)
    if sample.spans is not None and messages:
        return [
            SampledStretch(max(start, before), end, owner)
            for start, end, owner in sample.spans
            if end > before and 0 <= owner < len(messages) and messages[owner]["role"] == "assistant"
        ]
    found = []
    position = before
    for flag, run in groupby(sample.mask):
        count = len(list(run))
        if flag:
            found.append(SampledStretch(position, position + count, -1))
        position += count
    return found


def number_stretches(
    samples: Sequence[RecordedSample], starts: Sequence[int], messages: Sequence[Message]
) -> list[list[tuple[int, SampledStretch]]]:
    """Return each sample's completions with their turn numbers, in the order they were played.

    `starts` are the turns that began samples 1, 2, ... Completions are ordered by their messages where all of those are
    known, else by the turn that began their sample.
    """
    found = []
    for number, sample in enumerate(samples):
        began = 0 if number == 0 else starts[number - 1] if number <= len(starts) else number
        for place, stretch in enumerate(sampled_stretches(sample, messages)):
            found.append(((stretch.message, began + place, number), stretch))
    if any(stretch.message < 0 for _, stretch in found):
        found = [((-1, began, number), stretch) for (_, began, number), stretch in found]
    turns: list[list[tuple[int, SampledStretch]]] = [[] for _ in samples]
    for turn, (order, stretch) in enumerate(sorted(found)):
        turns[order[2]].append((turn, stretch))
    return turns


def unfold_samples(
    samples: Sequence[RecordedSample], starts: Sequence[int], messages: Sequence[Message]
) -> tuple[RecordedTurn, ...]:
    """Return the turns in the order they were played; see `number_stretches`."""
    numbered = [
        (turn, _turn(sample, stretch, messages))
        for sample, stretches in zip(samples, number_stretches(samples, starts, messages), strict=True)
        for turn, stretch in stretches
    ]
    return tuple(turn for _, turn in sorted(numbered, key=lambda pair: pair[0]))


def _turn(sample: RecordedSample, stretch: SampledStretch, messages: Sequence[Message]) -> RecordedTurn:
    whole = [*sample.prompt_ids, *sample.completion_ids]
    before = len(sample.prompt_ids)
    values = sample.logprobs
    return RecordedTurn(
        prompt_ids=whole[: stretch.start],
        completion_ids=whole[stretch.start : stretch.end],
        logprobs=None if values is None else values[stretch.start - before : stretch.end - before],
        message=messages[stretch.message] if stretch.message >= 0 else None,
    )
