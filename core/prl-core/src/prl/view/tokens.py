"""What a view shows: rollouts, samples, and tokens with owner, masks and log-probability."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

UNKNOWN_OWNER = -2
"""The owner of tokens whose message could not be proven; -1 is the template's own."""


class TokenView(NamedTuple):
    """One token. Flags are None where they are not known; `logprob` is None where nothing was recorded."""

    position: int
    token_id: int
    text: str
    owner: int
    sampled: bool | None
    content: bool | None
    loss: bool | None
    logprob: float | None


class TurnRange(NamedTuple):
    """The tokens that a turn added to its sample: what was new in its prompt, and its completion."""

    turn: int
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleView:
    """One token sequence; `turns` are the ranges of its turns, in order."""

    tokens: Sequence[TokenView]
    turns: Sequence[TurnRange]

    def of_turn(self, turn: int) -> SampleView | None:
        """Return what one turn added, None where the sample does not hold it."""
        found = [one for one in self.turns if one.turn == turn]
        if not found:
            return None
        return SampleView(tokens=self.tokens[found[0].start : found[0].end], turns=found)

    def count(self, flag: str) -> int | None:
        """Return how many tokens have a flag ("sampled", "content" or "loss"); None where it is not known for all."""
        values = [getattr(token, flag) for token in self.tokens]
        return None if None in values else sum(values)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutView:
    """One rollout: facts in words, its breaks, its samples. `roles[i]` is the role of message i."""

    name: str
    where: str
    roles: Sequence[str]
    samples: Sequence[SampleView]
    facts: Sequence[tuple[str, str]] = ()
    breaks: Sequence[str] = field(default_factory=tuple)

    def of_turn(self, turn: int) -> RolloutView:
        """Return the rollout with one turn alone."""
        kept = [found for sample in self.samples if (found := sample.of_turn(turn)) is not None]
        return RolloutView(
            name=self.name, where=self.where, roles=self.roles, samples=kept, facts=self.facts, breaks=self.breaks
        )

    def owner(self, message: int) -> str:
        """Return an owner in words: `3:tool`, `template`, or `?` where it is not proven."""
        if message == UNKNOWN_OWNER:
            return "?"
        if message < 0:
            return "template"
        if message >= len(self.roles):
            return f"{message}:?"
        return f"{message}:{self.roles[message]}"


def mask_letters(token: TokenView) -> str:
    """Return the masks in three letters: Sampled, Content, Loss; `.` where not, `?` where not known."""
    flags = ((token.sampled, "S"), (token.content, "C"), (token.loss, "L"))
    return "".join("?" if flag is None else letter if flag else "." for flag, letter in flags)


def segments(tokens: Sequence[TokenView]) -> Iterator[list[TokenView]]:
    """Yield stretches of adjacent tokens with the same owner and masks."""
    for _, group in groupby(tokens, lambda token: (token.owner, token.sampled, token.content, token.loss)):
        yield list(group)


def token_text(table: Sequence[bytes], token_id: int) -> str:
    """Return a token's text; a part of a character as its bytes, an id outside the vocabulary as such."""
    if not 0 <= token_id < len(table):
        return f"<id {token_id} is outside the vocabulary>"
    data = table[token_id]
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return "".join(f"\\x{byte:02x}" for byte in data)
