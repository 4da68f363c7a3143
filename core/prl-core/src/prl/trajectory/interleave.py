"""Join the turns of a rollout to as few training samples as their exact ids allow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from prl.types import AlignmentError, Break, Rollout, TrainingSample, Turn, goes_on_from

from .causes import Divergence, TurnSpan, classify_break, common_prefix
from .routed import align_routed_experts


@dataclass(frozen=True, slots=True)
class InterleaveResult:
    """The samples of one rollout, the breaks between them, and what is worth a look.

    `turns[k]` are the rollout's turn numbers that sample `k` holds.
    """

    samples: list[TrainingSample]
    breaks: list[Break]
    warnings: list[str]
    turns: list[list[int]]


@dataclass(slots=True)
class _Open:
    """A sample that later turns may extend."""

    ids: list[int]
    prompt_length: int
    mask: list[bool]
    logprobs: list[float] | None
    temperatures: list[float]
    turns: list[int] = field(default_factory=list)
    spans: list[TurnSpan] = field(default_factory=list)
    earlier: list[int] = field(default_factory=list)

    def goes_on_in(self, turn: Turn) -> bool:
        """Whether the turn's prompt starts with this sample: with the prompt and the completion of its last turn."""
        last = self.spans[-1].turn
        return goes_on_from(turn.prompt_ids, last.prompt_ids, last.completion_ids)


def interleave_rollout(
    rollout: Rollout,
    *,
    decode: Callable[[list[int]], str] | None = None,
    on_break: Callable[[Break, Divergence], None] | None = None,
) -> InterleaveResult:
    """Turn a rollout into training samples: a turn extends the longest sample that its prompt starts with.

    Where none matches, a new sample starts and a `Break` says why and at which token; `decode` (ids to text) lets the
    cause be told from the text. `on_break` is called with each break and both sides' ids, which are valid
    during the call. A rollout with an error keeps its samples with every mask False.
    """
    if not isinstance(rollout, Rollout):
        raise AlignmentError(
            f"a {type(rollout).__name__} is no rollout",
            where="interleave_rollout(rollout)",
            next_step="give a prl.types.Rollout, with the exact ids of each turn",
        )
    samples: list[_Open] = []
    breaks: list[Break] = []
    warnings: list[str] = []
    for number, turn in enumerate(rollout.turns):
        _check_turn(turn, number, rollout.trajectory_id)
        matching = [sample for sample in samples if sample.goes_on_in(turn)]
        if len(matching) > 1:
            warnings.append(
                f"ambiguous prefix at step {number}: {len(matching)} samples match, the longest is extended"
            )
        if matching:
            target = max(reversed(matching), key=lambda sample: len(sample.ids))
        else:
            if samples:
                breaks.append(_break_at(samples, turn, number, decode, on_break))
            target = _Open(list(turn.prompt_ids), len(turn.prompt_ids), [], None if turn.logprobs is None else [], [])
            samples.append(target)
        _extend(target, turn, number)
    built = [_build(sample, rollout) for sample in samples]
    return InterleaveResult(built, breaks, warnings, [list(sample.turns) for sample in samples])


def _check_turn(turn: Turn, number: int, trajectory: str) -> None:
    where = f"turn {number} of trajectory {trajectory!r}"
    if turn.logprobs is not None and len(turn.logprobs) != len(turn.completion_ids):
        raise AlignmentError(
            f"{len(turn.logprobs)} log-probabilities for {len(turn.completion_ids)} sampled tokens",
            where=where,
            next_step="the engine must return one log-probability per sampled token",
        )
    if turn.completion_mask is not None and len(turn.completion_mask) != len(turn.completion_ids):
        raise AlignmentError(
            f"the completion mask has {len(turn.completion_mask)} entries for {len(turn.completion_ids)} tokens",
            where=where,
            next_step="the mask must have one entry per token of the completion",
        )
    if not turn.prompt_ids:
        raise AlignmentError(
            "the turn has no prompt ids", where=where, next_step="use a client mode that returns the prompt's token ids"
        )


def _break_at(
    samples: Sequence[_Open],
    turn: Turn,
    number: int,
    decode: Callable[[list[int]], str] | None,
    on_break: Callable[[Break, Divergence], None] | None,
) -> Break:
    lengths = [common_prefix(sample.ids, turn.prompt_ids) for sample in samples]
    closest = max(range(len(samples)), key=lambda index: (lengths[index], index))
    position = lengths[closest]
    divergence = Divergence(
        old_ids=samples[closest].ids, new_ids=turn.prompt_ids, position=position, turns=samples[closest].spans
    )
    found = Break(turn=number, cause=classify_break(divergence, decode), position=position)
    if on_break is not None:
        on_break(found, divergence)
    return found


def _extend(sample: _Open, turn: Turn, number: int) -> None:
    new_prompt = turn.prompt_ids[len(sample.ids) :]
    first = not sample.turns
    sample.earlier.append(0 if first else len(sample.ids))
    sample.ids.extend(new_prompt)
    start = len(sample.ids)
    sample.ids.extend(turn.completion_ids)
    sample.mask += [False] * len(new_prompt) + (turn.completion_mask or [True] * len(turn.completion_ids))
    if sample.logprobs is not None and turn.logprobs is not None:
        sample.logprobs += [0.0] * len(new_prompt) + list(turn.logprobs)
    elif sample.logprobs is not turn.logprobs:
        raise AlignmentError(
            "some turns of one sample have log-probabilities and others have none",
            where=f"turn {number}",
            next_step="sample all turns of a rollout with one model",
        )
    sample.temperatures += [turn.temperature] * (len(new_prompt) + len(turn.completion_ids))
    sample.spans.append(TurnSpan(start, len(sample.ids), turn))
    sample.turns.append(number)


def _build(sample: _Open, rollout: Rollout) -> TrainingSample:
    routed = align_routed_experts(
        [
            (span.end, earlier, span.turn.routed_experts)
            for span, earlier in zip(sample.spans, sample.earlier, strict=True)
        ]
    )
    length = len(sample.ids)
    completion = length - sample.prompt_length
    streams: dict[str, Sequence[object] | None] = {
        "mask": sample.mask,
        "logprobs": sample.logprobs,
        "temperatures": sample.temperatures,
    }
    for name, stream in streams.items():
        if stream is not None and len(stream) != completion:
            raise AlignmentError(
                f"{name} has {len(stream)} entries for {completion} tokens",
                where=f"trajectory {rollout.trajectory_id!r}",
                next_step="report this: the sample was built wrongly",
            )
    return TrainingSample(
        prompt_ids=sample.ids[: sample.prompt_length],
        completion_ids=sample.ids[sample.prompt_length :],
        completion_mask=[False] * completion if rollout.error is not None else sample.mask,
        completion_logprobs=sample.logprobs,
        temperatures=sample.temperatures,
        reward=rollout.reward,
        weight_version=min(span.turn.weight_version for span in sample.spans),
        environment=rollout.environment,
        trajectory_id=rollout.trajectory_id,
        routed_experts=routed,
    )
