"""Where rollouts are played: in the orchestrator's process, or in workers on other processes and machines."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from prl.types import Rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """How a worker is rebuilt in any process: `target` ("module:attribute") called with `settings`, which is JSON data.

    Nothing that lives is pickled; renderers, environments and clients are made again from names and options.
    """

    target: str
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutJob:
    """One rollout to play: which task (`group`), which of its siblings (`member`), under which weights' cache salt."""

    group: int
    member: int
    cache_salt: str
    evaluation: str | None = None
    """The name of an evaluation that the rollout belongs to; None for training."""


@runtime_checkable
class RolloutWorker(Protocol):
    """What a spec's target makes; one lives in each process that plays rollouts and holds its connections."""

    async def start(self) -> None:
        """Reach the engine; raise `ConfigError` or `EngineError` with the next step where that fails."""
        ...

    async def play(self, job: RolloutJob) -> Rollout:
        """Play one rollout to its end. What breaks is in the rollout's `error`, with the turns so far."""
        ...

    async def close(self) -> None:
        """Release what the worker holds."""
        ...


@runtime_checkable
class RolloutExecutor(Protocol):
    """Plays jobs. The record's target is `create(options) -> RolloutExecutor`; creating one starts nothing."""

    async def start(self, spec: WorkerSpec) -> None:
        """Bring the workers up; raise `ConfigError` or `EngineError` with the next step where that fails."""
        ...

    async def play(self, job: RolloutJob) -> Rollout:
        """Play a job on some worker. A worker that dies is replaced; its job is played again or ends with an error.

        Cancelling the task aborts the rollout.
        """
        ...

    async def close(self) -> None:
        """End the workers."""
        ...
