"""Where a rollout's token sequence breaks, and both sides of the place as people can read them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from prl.trajectory import Divergence, interleave_rollout
from prl.types import Break, Rollout, Turn

Decode = Callable[[list[int]], str]
Shown = tuple[int, str]
"""A token: its id and its text."""

BEFORE = 4
AFTER = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedBreak:
    """One break: the turn whose prompt differs, why, and the tokens around the first that does.

    `inside` is the first turn whose completion ends after the difference, None where none does; `in_completion` says
    whether the difference lies in that completion rather than before it, and `simulated` whether the completion's ids
    are simulated. `common` are the tokens before the place, `sampled` those of the sample so far, `prompted` those of
    the new prompt.
    """

    turn: int
    cause: str
    position: int
    inside: int | None
    in_completion: bool
    simulated: bool
    common: tuple[Shown, ...]
    sampled: tuple[Shown, ...]
    prompted: tuple[Shown, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """What a rollout becomes: training samples, the tokens in them, and its breaks."""

    samples: int
    tokens: int
    breaks: tuple[AuditedBreak, ...]


def join_turns(name: str, turns: Sequence[Turn], known: Sequence[bool], decode: Decode) -> Joined:
    """Interleave turns and keep what is shown of each break; `known` says whose completion ids were recorded."""
    numbers = {id(turn): number for number, turn in enumerate(turns)}
    found: list[AuditedBreak] = []

    def keep(one: Break, divergence: Divergence) -> None:
        span = divergence.affected
        inside = None if span is None else numbers[id(span.turn)]
        at = divergence.position
        found.append(
            AuditedBreak(
                turn=one.turn,
                cause=str(one.cause),
                position=at,
                inside=inside,
                in_completion=divergence.is_sampled,
                simulated=divergence.is_sampled and inside is not None and not known[inside],
                common=_shown(divergence.new_ids[max(at - BEFORE, 0) : at], decode),
                sampled=_shown(divergence.old_ids[at : at + AFTER], decode),
                prompted=_shown(divergence.new_ids[at : at + AFTER], decode),
            )
        )

    rollout = Rollout(trajectory_id=name, turns=tuple(turns), reward=0.0)
    result = interleave_rollout(rollout, decode=decode, on_break=keep)
    return Joined(samples=len(result.samples), tokens=sum(map(len, result.samples)), breaks=tuple(found))


def _shown(ids: Sequence[int], decode: Decode) -> tuple[Shown, ...]:
    return tuple((token, decode([token])) for token in ids)
