"""The filters of a run as one: what they drop, and which examples they would rather not see again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from prl.contracts import ExampleHistory, RolloutFilter
from prl.types import PrlError, Rollout
from prl_train.run import RunError


class FilterSet:
    """Filters by label, in the order of the configuration."""

    def __init__(self, filters: Mapping[str, RolloutFilter]) -> None:
        self._filters = dict(filters)
        self._histories = {label: one for label, one in self._filters.items() if isinstance(one, ExampleHistory)}

    def judge(self, rollouts: Sequence[Rollout]) -> list[str | None]:
        """Return per rollout "label/reason" of the first filter that drops it, or None. Broken ones are not judged."""
        valid = [number for number, rollout in enumerate(rollouts) if rollout.error is None]
        drops: list[str | None] = [None] * len(rollouts)
        if not valid:
            return drops
        for label, one in self._filters.items():
            with _named(label):
                reasons = one.judge([rollouts[number] for number in valid])
            if len(reasons) != len(valid):
                raise RunError(
                    f"filter {label!r} returned {len(reasons)} judgements for {len(valid)} rollouts",
                    where="[[filters]]",
                    next_step="its judge() must return one entry for each rollout: None, or the reason to drop it",
                )
            for number, reason in zip(valid, reasons, strict=True):
                if reason is not None and drops[number] is None:
                    drops[number] = f"{label}/{reason}"
        return drops

    def wants(self, example_id: str, group: int) -> bool:
        """Whether every filter with a history wants the example played."""
        return all(self._wants(label, example_id, group) for label in self._histories)

    def _wants(self, label: str, example_id: str, group: int) -> bool:
        with _named(label):
            return self._histories[label].wants(example_id, group)

    @property
    def has_history(self) -> bool:
        """Whether any filter asks to be told of examples."""
        return bool(self._histories)

    def note(self, rollouts: Sequence[Rollout]) -> None:
        """Tell the histories of one group."""
        valid = [rollout for rollout in rollouts if rollout.error is None]
        for label, history in self._histories.items() if valid else ():
            with _named(label):
                history.note(valid)

    def state(self) -> dict[str, Any]:
        """Return what the histories remember, by label."""
        return {label: history.state() for label, history in self._histories.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`; a filter that was not there before begins anew."""
        for label, history in self._histories.items():
            if label in state:
                with _named(label):
                    history.restore(state[label])


@contextmanager
def _named(label: str) -> Iterator[None]:
    """Say whose fault it is when a filter fails: a rollout that nobody judged is neither trained on nor dropped."""
    try:
        yield
    except PrlError:
        raise
    except Exception as error:
        raise RunError(
            f"filter {label!r} failed: {type(error).__name__}: {error}",
            where="[[filters]]",
            next_step="repair or remove the filter; the batches so far are kept, `--resume` goes on from them",
        ) from error
