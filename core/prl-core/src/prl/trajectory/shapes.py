"""The shapes that trajectories are written in, each read to the same record.

A line is known by the first key that it has of: `turns`, `samples`, `responses`, `choices`, `prompts`, `prompt`,
`messages`; a bare array is a list of messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

from prl.types import Break, BreakCause, ConfigError, Message

from . import fields
from .fields import first_of, wrong
from .records import RecordedSample, RecordedTrajectory, RecordedTurn
from .unfold import unfold_samples

_NAMES = ("trajectory_id", "rollout_id", "id", "request_id")
_READ_ELSEWHERE = (*_NAMES, "prompt", "completion", "object", "created")


def read_trajectory(data: Any, *, where: str, number: int) -> RecordedTrajectory:
    """Return the record of one line's JSON value; raise `ConfigError` naming the field that is wrong."""
    if isinstance(data, list):
        data = {"messages": data}
    if not isinstance(data, dict):
        raise wrong("the line", data, "a JSON object, or an array of messages")
    for key, read in _SHAPES:
        if data.get(key) is not None:
            name = first_of(data, *_NAMES)
            common = {
                "name": f"line {number}" if name is None else str(name),
                "where": where,
                "tools": fields.tools(data.get("tools"), "tools"),
                "facts": fields.plain(data, _READ_ELSEWHERE),
            }
            return RecordedTrajectory(**{**common, **read(data)})
    raise ConfigError(
        f"the line has none of the keys {', '.join(key for key, _ in _SHAPES)}",
        where="the line",
        next_step='Write {"messages": [...]}, or {"turns": [{"prompt_ids": [...], "completion_ids": [...]}]}.',
    )


def _from_turns(data: Mapping[str, Any]) -> dict[str, Any]:
    entries = fields.objects(data["turns"], "turns")
    turns = tuple([_turn(entry, f"turns[{number}]") for number, entry in enumerate(entries)])
    found = {"messages": fields.messages(data.get("messages"), "messages") or (), "turns": turns}
    return found | _tools_of_requests(data, entries)


def _from_samples(data: Mapping[str, Any]) -> dict[str, Any]:
    entries = fields.objects(data["samples"], "samples")
    samples = tuple([_sample(entry, f"samples[{number}]") for number, entry in enumerate(entries)])
    breaks = tuple(
        [_break(entry, f"breaks[{n}]") for n, entry in enumerate(fields.objects(data.get("breaks") or [], "breaks"))]
    )
    messages = fields.messages(data.get("messages"), "messages") or ()
    return {
        "messages": messages,
        "turns": unfold_samples(samples, [one.turn for one in breaks], messages),
        "samples": samples,
        "breaks": breaks,
    }


def _from_responses(data: Mapping[str, Any]) -> dict[str, Any]:
    responses = fields.objects(data["responses"], "responses")
    requests = fields.objects(data.get("requests") or [{} for _ in responses], "requests")
    if len(requests) != len(responses):
        raise wrong("requests", len(requests), f"one request for each of the {len(responses)} responses")
    pairs = [{"request": request, "response": answer} for request, answer in zip(requests, responses, strict=True)]
    return _from_turns({**data, "turns": pairs})


def _from_choices(data: Mapping[str, Any]) -> dict[str, Any]:
    return _from_turns({"turns": [data], "messages": data.get("messages")})


def _from_prompts(data: Mapping[str, Any]) -> dict[str, Any]:
    prompts, answers = data["prompts"], data.get("completions")
    if not isinstance(prompts, list) or not isinstance(answers, list) or len(prompts) != len(answers):
        raise wrong("completions", answers, "one completion for each entry of prompts")
    turns = [
        RecordedTurn(request=fields.messages(prompt, f"prompts[{n}]"), message=_answer(answer, f"completions[{n}]")[-1])
        for n, (prompt, answer) in enumerate(zip(prompts, answers, strict=True))
    ]
    return {"turns": tuple(turns)}


def _from_prompt(data: Mapping[str, Any]) -> dict[str, Any]:
    prompt = fields.messages(data["prompt"], "prompt") or ()
    return {"messages": (*prompt, *_answer(data.get("completion"), "completion"))}


def _from_messages(data: Mapping[str, Any]) -> dict[str, Any]:
    return {"messages": fields.messages(data["messages"], "messages") or ()}


_SHAPES: tuple[tuple[str, Callable[[Mapping[str, Any]], dict[str, Any]]], ...] = (
    ("turns", _from_turns),
    ("samples", _from_samples),
    ("responses", _from_responses),
    ("choices", _from_choices),
    ("prompts", _from_prompts),
    ("prompt", _from_prompt),
    ("messages", _from_messages),
)


def _answer(value: Any, field: str) -> tuple[Message, ...]:
    """Return a completion's messages: a text, a message, or an array of messages."""
    if isinstance(value, str):
        return ({"role": "assistant", "content": value},)
    if isinstance(value, dict):
        return (fields.message(value, field),)
    found = fields.messages(value, field)
    if not found:
        raise wrong(field, value, "the answer: a text, a message, or an array of messages")
    return found


def _turn(entry: Mapping[str, Any], field: str) -> RecordedTurn:
    """Read a turn: its own fields, an engine's answer, or a request and its answer."""
    request = entry.get("request") or {}
    answer = entry.get("response") or entry
    if not isinstance(request, dict) or not isinstance(answer, dict):
        raise wrong(field, entry, "a request and a response that are objects")
    choice = _choice(answer, field)
    prompt = first_of(answer, "prompt_ids", "prompt_token_ids", "input_ids")
    if prompt is None:
        prompt = first_of(choice, "prompt_ids", "prompt_token_ids")
    completion = fields.ids(first_of(choice, "completion_ids", "token_ids", "output_ids"), f"{field}.completion_ids")
    said = choice.get("message")
    return RecordedTurn(
        prompt_ids=fields.ids(prompt, f"{field}.prompt_ids"),
        completion_ids=completion,
        logprobs=None
        if completion is None
        else fields.logprobs(choice.get("logprobs"), f"{field}.logprobs", len(completion)),
        finish_reason=_reason(choice.get("finish_reason"), field),
        request=fields.messages(first_of({**entry, **request}, "messages"), f"{field}.messages"),
        message=None if said is None else fields.message(said, f"{field}.message"),
    )


def _choice(answer: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    """Return what holds the completion: the answer itself, or its only choice."""
    if answer.get("choices") is None:
        return answer
    choices = fields.objects(answer["choices"], f"{field}.choices")
    if len(choices) != 1:
        raise ConfigError(
            f"{field}.choices has {len(choices)} entries, and a turn has one answer",
            where=f"{field}.choices",
            next_step="Keep the choice that the rollout went on from; write the others as rollouts of their own.",
        )
    return choices[0]


def _reason(value: Any, field: str) -> str | None:
    """Return "length" or "stop", as turns have it: a call ends a turn like any other stop."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise wrong(f"{field}.finish_reason", value, '"stop", "tool_calls" or "length"')
    return "length" if value == "length" else "stop"


def _tools_of_requests(data: Mapping[str, Any], entries: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the tools that the first request offered, where the line itself names none."""
    if data.get("tools"):
        return {}
    offered = [(entry.get("request") or {}).get("tools") for entry in entries if isinstance(entry.get("request"), dict)]
    found = next((one for one in offered if one), None)
    return {"tools": fields.tools(found, "request.tools")} if found else {}


def _sample(entry: Mapping[str, Any], field: str) -> RecordedSample:
    prompt = fields.ids(entry.get("prompt_ids"), f"{field}.prompt_ids") or []
    completion = fields.ids(entry.get("completion_ids"), f"{field}.completion_ids")
    if completion is None:
        raise wrong(f"{field}.completion_ids", None, "an array of token ids")
    mask = first_of(entry, "mask", "completion_mask")
    if not isinstance(mask, list) or len(mask) != len(completion) or not all(flag in (0, 1) for flag in mask):
        raise wrong(f"{field}.mask", mask, f"one flag (0 or 1) for each of the {len(completion)} completion ids")
    return RecordedSample(
        prompt_ids=prompt,
        completion_ids=completion,
        mask=[bool(flag) for flag in mask],
        logprobs=fields.logprobs(
            first_of(entry, "logprobs", "completion_logprobs"), f"{field}.logprobs", len(completion)
        ),
        spans=_spans(entry.get("spans"), f"{field}.spans", len(prompt) + len(completion)),
    )


def _spans(value: Any, field: str, length: int) -> tuple[tuple[int, int, int], ...] | None:
    if value is None:
        return None
    whole = isinstance(value, list) and all(
        isinstance(span, list) and len(span) == 3 and all(type(part) is int for part in span) for span in value
    )
    ends = [(0, 0, 0), *value] if whole else [(0, 0, 0)]
    follow = all(before[1] == span[0] <= span[1] for before, span in pairwise(ends))
    if not whole or not follow or ends[-1][1] != length:
        raise wrong(field, value, f"[start, end, message] entries that cover the sample's {length} tokens in order")
    return tuple((start, end, message) for start, end, message in value)


def _break(entry: Any, field: str) -> Break:
    causes = [cause.value for cause in BreakCause]
    if not isinstance(entry, dict) or type(entry.get("turn")) is not int or entry.get("cause") not in causes:
        raise wrong(field, entry, f"an object with turn, cause ({', '.join(causes)}) and position")
    position = entry.get("position") or 0
    if type(position) is not int:
        raise wrong(f"{field}.position", position, "the first differing token: an integer")
    return Break(turn=entry["turn"], cause=BreakCause(entry["cause"]), position=position)
