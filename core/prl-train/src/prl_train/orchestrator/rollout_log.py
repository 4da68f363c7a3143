"""Log rollouts with their ids, masks and message spans, one JSON line each."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from prl.client.images import shortened_images
from prl.contracts import Renderer
from prl.types import RenderedTokens, Rollout, ToolSpec, TrainingSample

from .groups import Group
from .schedule import tools_of

NOBODY = -1


def rollout_lines(groups: Sequence[Group], renderer: Renderer | None, *, dropped: Sequence[Group] = ()) -> str:
    """Return the JSON lines of a step's rollouts, errored ones included, and those of the groups it left out."""
    places = [(group, position, False) for group in groups for position in range(len(group.rollouts))]
    places += [(group, position, True) for group in dropped for position in range(len(group.rollouts))]
    return "".join(_line(_record(*place[:2], renderer, left_out=place[2])) for place in places)


def _line(record: dict[str, Any]) -> str:
    """Return a record as a line of JSON, readable as far as it is text: half a surrogate pair stays an escape."""
    line = json.dumps(record, ensure_ascii=False, default=str)
    return (line if _is_text(line) else json.dumps(record, default=str)) + "\n"


def _is_text(line: str) -> bool:
    try:
        line.encode()
    except UnicodeEncodeError:
        return False
    return True


def _why_dropped(group: Group, position: int, left_out: bool) -> str | None:
    """Return "filter/reason" of a rollout that is not trained on, or "group" where its whole group was left out."""
    drop = group.drops[position] if group.drops else None
    return drop or ("group" if left_out else None)


def _record(group: Group, position: int, renderer: Renderer | None, *, left_out: bool) -> dict[str, Any]:
    rollout, result = group.rollouts[position], group.results[position]
    tools = list(rollout.tools) or tools_of(group.environment)
    return {
        "trajectory_id": rollout.trajectory_id,
        "group_id": rollout.group_id,
        "environment": rollout.environment,
        "example_id": rollout.example_id,
        "reward": rollout.reward,
        "advantage": group.advantages[position],
        "stop_reason": rollout.stop_reason,
        "is_truncated": rollout.is_truncated,
        "error": rollout.error,
        "dropped": _why_dropped(group, position, left_out),
        "metrics": rollout.metrics,
        "weight_versions": [turn.weight_version for turn in rollout.turns],
        "breaks": [{"turn": b.turn, "cause": str(b.cause), "position": b.position} for b in result.breaks],
        "messages": shortened_images(rollout.messages),
        "tools": list(tools) if tools else None,
        **({"output": rollout.output} if rollout.output else {}),
        "samples": [
            _sample(sample, message_owners(rollout, turns, renderer, tools))
            for sample, turns in zip(result.samples, result.turns, strict=True)
        ],
    }


def _sample(sample: TrainingSample, owners: list[int] | None) -> dict[str, Any]:
    return {
        "prompt_ids": sample.prompt_ids,
        "completion_ids": sample.completion_ids,
        "mask": [int(flag) for flag in sample.completion_mask],
        "logprobs": _rounded(sample.completion_logprobs),
        "spans": None if owners is None else _spans(owners),
    }


def _rounded(logprobs: list[float] | None) -> list[float] | None:
    return None if logprobs is None else [round(value, 6) for value in logprobs]


def _spans(owners: Iterable[int]) -> list[list[int]]:
    """Fold one message index per token to [start, end, message] spans."""
    spans: list[list[int]] = []
    for position, owner in enumerate(owners):
        if spans and spans[-1][2] == owner:
            spans[-1][1] = position + 1
        else:
            spans.append([position, position + 1, owner])
    return spans


def message_owners(
    rollout: Rollout, turns: Sequence[int], renderer: Renderer | None, tools: Sequence[ToolSpec] | None
) -> list[int] | None:
    """Return, per token of the sample made of `turns`, the index of its message in `rollout.messages`, or -1.

    None where the renderer's own spans cannot be matched with the ids that were sent: owners are proven, not guessed.
    """
    if renderer is None:
        return None
    starts = _turn_starts(rollout)
    if starts is None:
        return None
    owners: list[int] = []
    for number in turns:
        turn = rollout.turns[number]
        known = len(owners)
        rendered: RenderedTokens | None
        if known == 0:
            rendered = renderer.render(rollout.messages[: starts[number]], tools=tools, add_generation_prompt=True)
            offset = 0
        else:
            before = rollout.turns[number - 1]
            offset = starts[number - 1] + 1
            rendered = renderer.bridge_to_next_turn(
                before.prompt_ids,
                before.completion_ids,
                rollout.messages[offset : starts[number]],
                tools=tools,
                history=rollout.messages[:offset],
            )
        if rendered is None or rendered.spans is None or rendered.token_ids != turn.prompt_ids:
            return None
        owners += [owner if owner == NOBODY else owner + offset for owner in rendered.message_indices[known:]]
        owners += [starts[number]] * len(turn.completion_ids)
    return owners


def _turn_starts(rollout: Rollout) -> Sequence[int] | None:
    """Return each turn's assistant message index; None where the turns do not stand in the conversation in order.

    Where the rollout does not say, the last assistant messages are taken for the turns: those of a task's few-shot
    prompt come before. A wrong guess does not pass the comparison of ids.
    """
    if len(rollout.turn_messages) == len(rollout.turns):
        return rollout.turn_messages
    said = [position for position, message in enumerate(rollout.messages) if message["role"] == "assistant"]
    return said[-len(rollout.turns) :] if len(said) >= len(rollout.turns) else None
