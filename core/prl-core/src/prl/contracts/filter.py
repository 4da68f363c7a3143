"""Which rollouts are worth training on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from prl.types import Rollout


@runtime_checkable
class RolloutFilter(Protocol):
    """Judges the finished rollouts of one task. The record's target is `create(options) -> RolloutFilter`."""

    name: str

    def judge(self, rollouts: Sequence[Rollout]) -> Sequence[str | None]:
        """Return one entry per rollout: None keeps it, a short reason drops it from training.

        Called in a thread with the rollouts of a group that did not break, so that a judgement may compare siblings; it
        must depend on them alone. Reasons are counted as they are: keep them few, without numbers. Advantages are
        computed before a filter runs: what is dropped still counts in its group's mean.
        """
        ...


@runtime_checkable
class ExampleHistory(Protocol):
    """A filter that remembers how examples went, and says which need not be played again.

    What it remembers travels with the run: a resumed run goes on with the same state.
    """

    def wants(self, example_id: str, group: int) -> bool:
        """Whether the example should be played as group number `group`. The same answer for the same state."""
        ...

    def note(self, rollouts: Sequence[Rollout]) -> None:
        """Take in the rollouts of one group that did not break, in the order in which groups left the pool."""
        ...

    def state(self) -> dict[str, Any]:
        """Return what is remembered, as JSON data."""
        ...

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` returned."""
        ...
