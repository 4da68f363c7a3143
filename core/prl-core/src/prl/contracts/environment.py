"""An environment: tasks, and what answers the model's turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from prl.types import Message, ParsedResponse, ToolSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One task: an id stable across runs, the opening messages, and what the environment needs to judge it."""

    id: str
    messages: tuple[Message, ...]
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What the environment answers to one assistant turn.

    `messages` are appended to the conversation (tool results, the next user turn); with `done` they are not sent.
    `reward` is the episode's total so far.
    """

    messages: tuple[Message, ...] = ()
    done: bool = False
    reward: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)


@runtime_checkable
class Episode(Protocol):
    """One run of one example."""

    async def step(self, message: Message, parsed: ParsedResponse | None) -> StepResult:
        """Judge the assistant turn and answer it. Malformed calls are in `parsed.invalid_tool_calls`."""
        ...


@runtime_checkable
class Environment(Protocol):
    """A set of tasks. The record's target is `create(options) -> Environment`."""

    name: str
    max_turns: int

    @property
    def tools(self) -> Sequence[ToolSpec] | None:
        """The tools offered to the model, or None."""
        ...

    def example(self, index: int) -> Example:
        """Return task `index` (any non-negative integer; the same index is the same task)."""
        ...

    def start(self, example: Example) -> Episode:
        """Begin an episode."""
        ...


@runtime_checkable
class Demonstrator(Protocol):
    """An environment that can also show how a turn is played, for a supervised warm-up."""

    def demonstration(self, index: int) -> list[Message]:
        """Return a whole conversation for task `index`, assistant turns included."""
        ...


@runtime_checkable
class ClosableEnvironment(Protocol):
    """An environment of either kind that holds servers or connections between rollouts."""

    async def aclose(self) -> None:
        """Release them. Called once, when all rollouts of the process have ended; also where none was played."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentEndpoint:
    """Where an agent finds its model: an OpenAI-compatible base URL that belongs to this one rollout.

    `api_key` is the rollout's own secret; what is asked with it is recorded as the rollout's turns.
    """

    base_url: str
    api_key: str
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentResult:
    """How an agent's run was judged; `output` is the last part of what it printed, for people who read rollouts."""

    reward: float
    metrics: dict[str, float] = field(default_factory=dict)
    output: str = ""


@runtime_checkable
class AgentEnvironment(Protocol):
    """Tasks that a program of its own solves, which knows its model only by an OpenAI-compatible address.

    The record is an `EnvironmentEntry`, its target `create(options) -> AgentEnvironment`.
    """

    name: str

    def example(self, index: int) -> Example:
        """Return task `index` (any non-negative integer; the same index is the same task)."""
        ...

    async def run(self, example: Example, endpoint: AgentEndpoint) -> AgentResult:
        """Let the agent work on one task and judge the outcome. Cancelling the task ends the agent.

        Raising records the rollout as broken, with the turns so far.
        """
        ...
