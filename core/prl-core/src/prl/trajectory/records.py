"""Trajectories of any system, as read from a file: messages where they are known, token ids where they are known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from prl.types import Break, Message, ToolSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedTurn:
    """One request and its answer; what was not recorded is None.

    `request` are the messages as they were sent. `logprobs[i]` belongs to `completion_ids[i]`.
    """

    prompt_ids: list[int] | None = None
    completion_ids: list[int] | None = None
    logprobs: list[float] | None = None
    finish_reason: str | None = None
    request: tuple[Message, ...] | None = None
    message: Message | None = None

    @property
    def has_ids(self) -> bool:
        """Whether both what was sent and what was sampled is known as ids."""
        return self.prompt_ids is not None and self.completion_ids is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSample:
    """One training sample as a run logged it; `mask` and `logprobs` cover `completion_ids`.

    `spans` are [start, end, message] over `prompt_ids + completion_ids`, None where owners were not proven.
    """

    prompt_ids: list[int]
    completion_ids: list[int]
    mask: list[bool]
    logprobs: list[float] | None = None
    spans: tuple[tuple[int, int, int], ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedTrajectory:
    """One line of a trajectory file.

    `where` is its file and line. `facts` are the line's other plain values (reward, environment, ...), for people.
    `turns` is empty where only messages are known. `samples` and `breaks` are those that the recording run made.
    """

    name: str
    where: str
    messages: tuple[Message, ...] = ()
    tools: tuple[ToolSpec, ...] | None = None
    turns: tuple[RecordedTurn, ...] = ()
    samples: tuple[RecordedSample, ...] = ()
    breaks: tuple[Break, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
