"""Build views: of rollouts with token ids, and of conversations that a renderer renders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from prl.contracts import Renderer
from prl.tokenizer import Tokenizer
from prl.trajectory import RecordedTrajectory, RecordedTurn, interleave_rollout, number_stretches
from prl.types import ConfigError, Message, RenderedTokens, Rollout, Turn

from .owners import Before, Owned, own_turn, unknown
from .tokens import RolloutView, SampleView, TokenView, TurnRange, token_text


class _Streams(NamedTuple):
    """What is known of each token of one sequence; all lists have its length."""

    ids: list[int]
    owned: Owned
    sampled: Sequence[bool | None]
    loss: Sequence[bool | None]
    logprobs: Sequence[float | None]


def view_trajectory(record: RecordedTrajectory, tokenizer: Tokenizer, renderer: Renderer | None) -> RolloutView:
    """Return a trajectory's view: its logged samples, its turns joined to samples, or its messages rendered.

    Without a renderer, owners are those that were logged. Raises a `PrlError` where there is nothing to show.
    """
    if record.samples:
        return _of_samples(record, tokenizer, renderer)
    if record.turns and all(turn.has_ids for turn in record.turns):
        return _of_turns(record, tokenizer, renderer)
    if not record.messages:
        raise ConfigError(
            "the line has neither messages nor turns with prompt_ids and completion_ids",
            where="the line",
            next_step="Write the messages, or both kinds of ids for every turn.",
        )
    if renderer is None:
        raise ConfigError(
            "the line holds messages and no token ids",
            where="the line",
            next_step="Name a renderer that renders them: --renderer NAME, or auto with --model.",
        )
    return _of_messages(record, tokenizer, renderer)


def _of_samples(record: RecordedTrajectory, tokenizer: Tokenizer, renderer: Renderer | None) -> RolloutView:
    numbered = number_stretches(record.samples, [one.turn for one in record.breaks], record.messages)
    views = []
    for sample, stretches in zip(record.samples, numbered, strict=True):
        ids = [*sample.prompt_ids, *sample.completion_ids]
        before = len(sample.prompt_ids)
        ranges = _ranges([(turn, stretch.end) for turn, stretch in stretches], len(ids))
        sampled = [False] * len(ids)
        for _, stretch in stretches:
            sampled[stretch.start : stretch.end] = [True] * (stretch.end - stretch.start)
        turns = [(turn, record.turns[turn]) for turn, _ in stretches]
        owned = _owned(record, turns, len(ids), renderer)
        if sample.spans is not None:
            owned = Owned([owner for start, end, owner in sample.spans for _ in range(end - start)], owned.content)
        values: list[float | None] = [None] * before
        logged: Sequence[float | None] = sample.logprobs or [None] * len(sample.mask)
        for flag, value in zip(sample.mask, logged, strict=True):
            values.append(value if flag else None)
        streams = _Streams(ids, owned, sampled, [False] * before + sample.mask, values)
        views.append(SampleView(tokens=_tokens(streams, tokenizer), turns=ranges))
    causes = [f"turn {one.turn}: {one.cause} at token {one.position}" for one in record.breaks]
    return _rollout(record, views, causes)


def _of_turns(record: RecordedTrajectory, tokenizer: Tokenizer, renderer: Renderer | None) -> RolloutView:
    turns = [_turn(one, renderer, record) for one in record.turns]
    joined = interleave_rollout(
        Rollout(trajectory_id=record.name, turns=tuple(turns), reward=0.0), decode=tokenizer.decode
    )
    views = []
    for sample, numbers in zip(joined.samples, joined.turns, strict=True):
        ids = [*sample.prompt_ids, *sample.completion_ids]
        flags = [False] * len(sample.prompt_ids) + sample.completion_mask
        values: list[float | None] = [None] * len(ids)
        for number in numbers:
            start = len(turns[number].prompt_ids)
            logged = record.turns[number].logprobs
            if logged is not None:
                values[start : start + len(logged)] = logged
        owned = _owned(record, [(number, record.turns[number]) for number in numbers], len(ids), renderer)
        ends = [(n, len(turns[n].prompt_ids) + len(turns[n].completion_ids)) for n in numbers]
        streams = _Streams(ids, owned, flags, flags, values)
        views.append(SampleView(tokens=_tokens(streams, tokenizer), turns=_ranges(ends, len(ids))))
    causes = [f"turn {one.turn}: {one.cause} at token {one.position}" for one in joined.breaks]
    return _rollout(record, views, causes)


def _of_messages(record: RecordedTrajectory, tokenizer: Tokenizer, renderer: Renderer) -> RolloutView:
    rendered = renderer.render(record.messages, tools=record.tools)
    told = "rendered from the messages" + (": not all turns have recorded ids" if record.turns else "")
    count = len(rendered)
    if rendered.spans is None:
        nothing: list[bool | None] = [None] * count
        streams = _Streams(rendered.token_ids, unknown(count), nothing, nothing, [None] * count)
        return _rollout(
            record, [SampleView(tokens=_tokens(streams, tokenizer), turns=())], [], f"{told}; owners are not proven"
        )
    owned = Owned(rendered.message_indices, list(rendered.content_mask))
    streams = _Streams(rendered.token_ids, owned, rendered.sampled_mask, rendered.loss_mask(), [None] * count)
    view = SampleView(tokens=_tokens(streams, tokenizer), turns=_answers(rendered))
    return _rollout(record, [view], [], told)


def _answers(rendered: RenderedTokens) -> list[TurnRange]:
    """Return one range per answer of the model: the tokens behind the answer before, up to its own end."""
    answers = [n for n, role in enumerate(rendered.roles) if role == "assistant"]
    ends = []
    for turn, message in enumerate(answers):
        own = [place for place, owner in enumerate(rendered.message_indices) if owner == message]
        if own:
            ends.append((turn, own[-1] + 1))
    return _ranges(ends, len(rendered))


def _ranges(ends: Sequence[tuple[int, int]], length: int) -> list[TurnRange]:
    """Return the turns' ranges from their ends; what follows the last one belongs to it."""
    found = []
    start = 0
    for place, (turn, end) in enumerate(ends):
        stop = length if place == len(ends) - 1 else end
        found.append(TurnRange(turn, start, stop))
        start = stop
    return found


def _owned(
    record: RecordedTrajectory, turns: Sequence[tuple[int, RecordedTurn]], length: int, renderer: Renderer | None
) -> Owned:
    owners: list[int] = []
    content: list[bool | None] = []
    before: Before | None = None
    for number, turn in turns:
        history, message = _said(record, number, turn)
        prompt, completion = turn.prompt_ids or [], turn.completion_ids or []
        found = own_turn(renderer, history, message, prompt, completion, record.tools, before)
        owners += found.owners
        content += found.content
        before = Before(prompt, completion)
    rest = unknown(length - len(owners))
    return Owned([*owners, *rest.owners], [*content, *rest.content])


def _said(record: RecordedTrajectory, number: int, turn: RecordedTurn) -> tuple[Sequence[Message], Message | None]:
    """Return what a turn was asked and what it answered, where that is recorded."""
    if turn.request is not None:
        return turn.request, turn.message
    places = [n for n, message in enumerate(record.messages) if message is turn.message]
    if not places:
        answers = [n for n, message in enumerate(record.messages) if n and message["role"] == "assistant"]
        places = answers[-len(record.turns) :][number : number + 1] if len(answers) >= len(record.turns) else []
    return (record.messages[: places[0]], record.messages[places[0]]) if places else ((), turn.message)


def _turn(recorded: RecordedTurn, renderer: Renderer | None, record: RecordedTrajectory) -> Turn:
    prompt, completion = recorded.prompt_ids or [], recorded.completion_ids or []
    parsed = None
    if renderer is not None:
        parsed = renderer.parse_response(completion, tools=record.tools, prompt_ids=prompt)
    return Turn(
        prompt_ids=prompt,
        completion_ids=completion,
        logprobs=None,
        finish_reason=recorded.finish_reason or "stop",
        weight_version=0,
        message=recorded.message or {"role": "assistant", "content": ""},
        parsed=parsed,
    )


def _tokens(streams: _Streams, tokenizer: Tokenizer) -> list[TokenView]:
    table = tokenizer.token_bytes
    rows = zip(
        streams.ids,
        streams.owned.owners,
        streams.sampled,
        streams.owned.content,
        streams.loss,
        streams.logprobs,
        strict=True,
    )
    return [
        TokenView(position, token, token_text(table, token), owner, sampled, content, loss, logprob)
        for position, (token, owner, sampled, content, loss, logprob) in enumerate(rows)
    ]


def _rollout(
    record: RecordedTrajectory, samples: Sequence[SampleView], breaks: Sequence[str], ids: str = "as recorded"
) -> RolloutView:
    roles: list[Any] = [message["role"] for message in record.messages]
    for turn in record.turns:
        asked = [one["role"] for one in turn.request or ()]
        if len(asked) >= len(roles):
            roles = [*asked, "assistant"]
    facts = [*((key, _plain(value)) for key, value in record.facts.items()), ("ids", ids)]
    return RolloutView(name=record.name, where=record.where, roles=roles, samples=samples, facts=facts, breaks=breaks)


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
