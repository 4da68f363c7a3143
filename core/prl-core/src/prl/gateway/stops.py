"""Stop strings: an engine stops at ids, so a text that a client wants to stop at is looked for in what was sampled."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from prl.types import GenerateChoice

from .faults import GatewayFault


@dataclass(frozen=True, slots=True)
class Said:
    """A completion up to the token that completes a stop string, and the ids of its text before that string.

    `read` is what the message is read from; nothing of it is recorded. Without a stop string it is the completion.
    """

    choice: GenerateChoice
    read: list[int]


def check_stops(stops: Sequence[str], tokenizer: Any) -> None:
    """Raise `GatewayFault` where text cannot be looked for."""
    if stops and tokenizer is None:
        raise GatewayFault(
            "stop is not supported by a renderer without a tokenizer",
            fault="invalid_value",
            param="stop",
            next_step="leave out stop",
        )


def cut_at_stop(
    choice: GenerateChoice, stops: Sequence[str], tokenizer: Any, *, prompt_length: int, min_tokens: int
) -> Said:
    """Cut a completion at the stop string that is completed first, later than `min_tokens` tokens.

    What is kept was sampled, so its log-probabilities and routing rows are exact. Only what is read is encoded anew.
    """
    ids = choice.token_ids
    if not stops:
        return Said(choice, ids)
    text = tokenizer.decode(ids)
    floor = len(tokenizer.decode(ids[:min_tokens])) if min_tokens else 0
    found = _first(text, stops, floor)
    if found is None:
        return Said(choice, ids)
    start, end = found
    counts = range(len(ids) + 1)
    size = bisect_left(counts, True, key=lambda count: tokenizer.decode(ids[:count]).startswith(text[:end]))
    before = bisect_right(counts, start, key=lambda count: len(tokenizer.decode(ids[:count]))) - 1
    while not text[:start].startswith(tokenizer.decode(ids[:before])):  # it ends inside a character
        before -= 1
    rest = text[len(tokenizer.decode(ids[:before])) : start]  # of a token in which the stop string begins
    return Said(_cut(choice, size, prompt_length), [*ids[:before], *tokenizer.encode_ordinary(rest)])


def _first(text: str, stops: Sequence[str], floor: int) -> tuple[int, int] | None:
    """Return where the string that is completed first lies, of those that end behind `floor`."""
    starts = [(text.find(stop, max(floor - len(stop) + 1, 0)), len(stop)) for stop in stops]
    ends = [(start + length, start) for start, length in starts if start >= 0]
    if not ends:
        return None
    end, start = min(ends)
    return start, end


def _cut(choice: GenerateChoice, size: int, prompt_length: int) -> GenerateChoice:
    routed = choice.routed_experts
    return replace(
        choice,
        token_ids=choice.token_ids[:size],
        logprobs=choice.logprobs[:size],
        finish_reason="stop",
        routed_experts=None if routed is None else routed[: prompt_length + size],
    )
