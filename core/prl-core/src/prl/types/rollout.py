"""Rollouts: turns with the exact ids that were sent and sampled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from .messages import Message, ToolSpec
from .parsed import ParsedResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One request to the engine and its answer.

    `prompt_ids` is a list, or `PromptIds` that share their memory with the other turns' of the rollout.
    `logprobs[i]` belongs to `completion_ids[i]`; None where nobody sampled these tokens: another model said it, and our
    renderer wrote it down. `completion_mask[i]` is False where the completion holds what no model samples; None
    stands for all True. `temperature` is what the engine sampled with.
    """

    prompt_ids: Sequence[int]
    completion_ids: list[int]
    logprobs: list[float] | None
    finish_reason: str
    weight_version: int
    message: Message
    parsed: ParsedResponse | None = None
    temperature: float = 1.0
    routed_experts: Any = None
    completion_mask: list[bool] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One finished episode.

    `example_id` and `group_id` say which task it answers and with which siblings its reward is compared.
    `stop_reason` is "done", "max_turns", "prompt_too_long", "length" or "error"; a rollout that ended early keeps its
    turns. `error` is the text of what broke, None otherwise. `messages` is the whole conversation as the environment
    saw it; `turn_messages[k]` is the index in it of turn k's own message (empty where the conversation is not one line,
    as an agent's need not be). `output` is what an agent printed, `tools` are those it brought itself.
    """

    trajectory_id: str
    turns: tuple[Turn, ...]
    reward: float
    environment: str = ""
    example_id: str = ""
    group_id: str = ""
    stop_reason: str = "done"
    is_truncated: bool = False
    error: str | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    messages: tuple[Message, ...] = ()
    turn_messages: tuple[int, ...] = ()
    output: str = ""
    tools: tuple[ToolSpec, ...] = ()


class BreakCause(StrEnum):
    """Why a turn's prompt was not an extension of an earlier one."""

    BOOLEAN_ROUND_TRIP = "boolean_round_trip"
    BPE_DRIFT = "bpe_drift"
    TOOL_MARKUP_DRIFT = "tool_markup_drift"
    TRUNCATION = "truncation"
    HISTORY_REWRITTEN = "history_rewritten"
    THINKING_STRIPPED = "thinking_stripped"
    COMPACTION = "compaction"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """A new sample had to start at turn `turn`.

    `position` is the first differing token of the closest earlier sample.
    """

    turn: int
    cause: BreakCause
    position: int
