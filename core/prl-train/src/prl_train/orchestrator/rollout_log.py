"""Log rollouts with their ids, masks and message spans, one JSON line each."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from prl.contracts import Renderer
from prl.types import RenderedTokens, Rollout, ToolSpec, TrainingSample

from .groups import Group

NOBODY = -1


def rollout_lines(groups: Sequence[Group], renderer: Renderer | None) -> str:
    """Return the JSON lines of a step's rollouts, errored ones included."""
    return "".join(
        json.dumps(_record(group, position, renderer), ensure_ascii=False, default=str) + "\n"
        for group in groups
        for position in range(len(group.rollouts))
    )


def _record(group: Group, position: int, renderer: Renderer | None) -> dict[str, Any]:
    rollout, result = group.rollouts[position], group.results[position]
    tools = group.environment.tools
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
        "metrics": rollout.metrics,
        "weight_versions": [turn.weight_version for turn in rollout.turns],
        "breaks": [{"turn": b.turn, "cause": str(b.cause), "position": b.position} for b in result.breaks],
        "messages": list(rollout.messages),
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
        "logprobs": [round(value, 6) for value in sample.completion_logprobs],
        "spans": None if owners is None else _spans(owners),
    }


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


def _turn_starts(rollout: Rollout) -> list[int]:
    """Return each turn's assistant message index: the messages are the turns' own, in order, between others.

    Turns are matched by identity of the message object, so an assistant message of a task's few-shot prompt is none.
    """
    starts: list[int] = []
    position = 0
    for turn in rollout.turns:
        while rollout.messages[position] is not turn.message:
            position += 1
        starts.append(position)
        position += 1
    return starts
