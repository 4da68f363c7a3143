"""One trajectory as steps: what was sent, what came back, and which earlier step each one goes on from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prl.contracts import Renderer
from prl.trajectory import RecordedTrajectory, RecordedTurn
from prl.types import ConfigError, Message, ParsedResponse, PrlError, RenderError, ToolSpec

from .server import Server, round_trip


@dataclass(frozen=True, slots=True)
class Step:
    """One turn: the messages that were sent, the answer as the client kept it, and the ids the model sampled.

    `is_known` says whether the ids were recorded; else they are the renderer's own spelling of the answer. `after` is
    the step whose conversation this one goes on from, None for a first turn and where the history was rewritten.
    `shared` counts the leading messages that the closest earlier step has too.
    """

    history: tuple[Message, ...]
    message: Message
    completion_ids: list[int]
    finish_reason: str
    parsed: ParsedResponse
    is_known: bool
    after: int | None
    shared: int


def make_steps(record: RecordedTrajectory, renderer: Renderer, server: Server) -> list[Step]:
    """Return a trajectory's steps; empty where ids alone say what happened. Raises a `PrlError`."""
    steps: list[Step] = []
    known = _Conversations()
    for number, (history, message, turn) in enumerate(_pairs(record)):
        ids = turn.completion_ids
        if ids is None:
            if message is None:
                raise _lacking(number)
            ids = simulate(renderer, history, message, record.tools)
        prompt = turn.prompt_ids
        if prompt is None:
            prompt = server.ids(history, record.tools, generate=True)
        parsed = renderer.parse_response(ids, tools=record.tools, prompt_ids=prompt)
        after, shared = known.find(history)
        answer = message or parsed.to_message()
        known.add(number, (*history, answer))
        steps.append(
            Step(
                history=history,
                message=answer,
                completion_ids=ids,
                finish_reason=_finish_reason(turn, ids, renderer),
                parsed=parsed,
                is_known=turn.completion_ids is not None,
                after=after,
                shared=shared,
            )
        )
    return steps


def simulate(
    renderer: Renderer, history: Sequence[Message], message: Message, tools: Sequence[ToolSpec] | None
) -> list[int]:
    """Return the ids that a model which writes exactly the template's form would sample for a message, and its stop."""
    said = [*history, round_trip(message)]
    rendered = renderer.render(said, tools=tools)
    own = len(history)
    owned = zip(rendered.token_ids, rendered.message_indices, rendered.sampled_mask, strict=True)
    ids = [token for token, owner, sampled in owned if sampled and owner == own]
    if ids and ids[-1] in renderer.get_stop_token_ids():
        return ids
    return [*ids, *_opened(renderer, said, tools)]


def _opened(renderer: Renderer, said: Sequence[Message], tools: Sequence[ToolSpec] | None) -> list[int]:
    """Return the token that opens the next message, where that is what models of this family stop on (GLM)."""
    calls = said[-1].get("tool_calls")
    following: Message = {"role": "tool", "content": "x"} if calls else {"role": "user", "content": "x"}
    if calls:
        following["tool_call_id"] = calls[0].get("id") or "call_0"
        following["name"] = calls[0]["function"]["name"]
    try:
        rendered = renderer.render([*said, following], tools=tools)
    except RenderError:  # a template that refuses this follow-up has no such stop to show
        return []
    ends = [place for place, owner in enumerate(rendered.message_indices) if owner == len(said) - 1]
    opener = rendered.token_ids[ends[-1] + 1 : ends[-1] + 2] if ends else []
    return [token for token in opener if token in renderer.get_stop_token_ids()]


def _pairs(record: RecordedTrajectory) -> list[tuple[tuple[Message, ...], Message | None, RecordedTurn]]:
    """Return history, answer and turn of each step, from what each turn sent or from the whole conversation."""
    sent = [turn.request for turn in record.turns if turn.request is not None]
    if sent and len(sent) < len(record.turns):
        raise ConfigError(
            f"{len(record.turns) - len(sent)} of {len(record.turns)} turns do not say which messages they sent",
            where="turns",
            next_step="Write the messages of every turn, or of none and the whole conversation under messages.",
        )
    if sent:
        return [(turn.request or (), turn.message, turn) for turn in record.turns]
    if not record.messages:
        return []
    places = _places(record)
    if places is None:
        return []
    turns = record.turns or tuple(RecordedTurn() for _ in places)
    return [(record.messages[:place], record.messages[place], turn) for place, turn in zip(places, turns, strict=True)]


def _places(record: RecordedTrajectory) -> list[int] | None:
    """Return the message index of each turn's answer, None where only the turns' ids say what happened.

    Answers before the first turn are examples of the prompt: they come first, so turns are counted from the end.
    """
    answers = [n for n, message in enumerate(record.messages) if n and message["role"] == "assistant"]
    named = [_index_of(record.messages, turn.message) for turn in record.turns]
    if record.turns and None not in named:
        return [place for place in named if place is not None]
    if len(record.turns) > len(answers):
        if all(turn.has_ids for turn in record.turns):
            return None
        raise ConfigError(
            f"{len(record.turns)} turns for {len(answers)} answers of the model",
            where="turns",
            next_step="Write the messages that each turn sent into the turn: its history may have been rewritten.",
        )
    if not answers:
        raise ConfigError(
            "no message is an answer of the model",
            where="messages",
            next_step='Add the messages with role "assistant", after what they answer, or leave the line out.',
        )
    return answers[-len(record.turns) :] if record.turns else answers


def _index_of(messages: Sequence[Message], wanted: Message | None) -> int | None:
    return next((n for n, message in enumerate(messages) if message is wanted), None)


def _finish_reason(turn: RecordedTurn, ids: Sequence[int], renderer: Renderer) -> str:
    if turn.finish_reason is not None or turn.completion_ids is None:
        return turn.finish_reason or "stop"
    return "stop" if ids and ids[-1] in renderer.get_stop_token_ids() else "length"


class _Conversations:
    """The conversations of earlier steps, by a key of each of their beginnings: long rollouts have many of both."""

    def __init__(self) -> None:
        self._begun: set[bytes] = set()
        self._whole: dict[bytes, int] = {}
        self._texts: dict[int, tuple[Message, bytes]] = {}  # by identity: turns share the messages of one rollout

    def add(self, number: int, messages: Sequence[Message]) -> None:
        """Remember the conversation that step `number` ended with."""
        keys = self._keys(messages)
        self._begun.update(keys)
        self._whole[keys[-1]] = number

    def find(self, history: Sequence[Message]) -> tuple[int | None, int]:
        """Return the step whose conversation this extends by at least a message, and how many messages are shared."""
        keys = self._keys(history)
        shared = next((n for n, key in enumerate(keys) if key not in self._begun), len(keys))
        after = next((self._whole[key] for key in reversed(keys[:-1]) if key in self._whole), None)
        return after, shared

    def _keys(self, messages: Sequence[Message]) -> list[bytes]:
        """Return one key per message, of the conversation that ends with it."""
        key = b""
        return [key := hashlib.sha256(key + self._text(message)).digest() for message in messages]

    def _text(self, message: Message) -> bytes:
        if id(message) not in self._texts:
            self._texts[id(message)] = message, canonical(message).encode()
        return self._texts[id(message)][1]


def canonical(message: Message) -> str:
    """Return what makes two messages the same one to an agent: role, text and calls.

    Clients send null for absent fields, drop reasoning, and space the JSON of arguments as they like.
    """
    calls: Any = round_trip(message).get("tool_calls") or []
    said: Mapping[str, Any] = {
        "role": message["role"],
        "content": text_of(message),
        "calls": [[call["function"]["name"], call["function"]["arguments"]] for call in calls],
        "answers": message.get("tool_call_id"),
    }
    return json.dumps(said, sort_keys=True, ensure_ascii=False, default=str)


def text_of(message: Message) -> str:
    """Return a message's text, its parts joined."""
    content = message.get("content")
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content or ""


def _lacking(number: int) -> PrlError:
    return ConfigError(
        "the turn has neither the sampled ids nor the answer's message",
        where=f"turns[{number}]",
        next_step="Write completion_ids, or message.",
    )
