"""The prompts of one rollout: each is the one before and a little more, so they share their memory."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, overload

_growing = threading.Lock()
"""One for all: what it guards takes as long as appending one turn's ids."""


class PromptIds(Sequence[int]):
    """Ids that never change, and can be extended without being copied.

    The prompts of a rollout are beginnings of one list that only grows: a turn costs what it adds, in time and in
    memory, however long the rollout is. A second extension of the same ids (a branch) begins a list of its own. Equal
    to a list of the same ids; pickled and deep-copied it becomes one, and JSON encoders want `list(ids)`. Safe to share
    between threads.
    """

    __slots__ = ("_ids", "_length")

    def __init__(self, ids: Iterable[int] = ()) -> None:
        self._ids: list[int] = ids._ids if isinstance(ids, PromptIds) else list(ids)
        self._length: int = len(ids) if isinstance(ids, PromptIds) else len(self._ids)  # so many of them are ours

    def extended(self, *more: Sequence[int]) -> PromptIds:
        """Return these ids and more behind them."""
        ids = self._ids
        with _growing:
            if len(ids) == self._length:  # nobody went on from here yet
                return self._grown(ids, more)
        return self._grown(ids[: self._length], more)

    def shares(self, other: object) -> bool:
        """Whether the shorter of both is the beginning of the longer one, known without a comparison."""
        return isinstance(other, PromptIds) and other._ids is self._ids

    @staticmethod
    def _grown(ids: list[int], more: Iterable[Sequence[int]]) -> PromptIds:
        for part in more:
            ids.extend(part)
        made = PromptIds.__new__(PromptIds)
        made._ids, made._length = ids, len(ids)
        return made

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, key: int) -> int: ...
    @overload
    def __getitem__(self, key: slice) -> list[int]: ...
    def __getitem__(self, key: int | slice) -> int | list[int]:
        found = range(self._length)[key]  # places: negative ones counted from our own end, IndexError behind it
        if isinstance(found, int):
            return self._ids[found]
        if found.step == 1:
            return self._ids[found.start : found.stop]
        return [self._ids[place] for place in found]

    def __iter__(self) -> Iterator[int]:
        return islice(self._ids, self._length)

    def __reversed__(self) -> Iterator[int]:
        return map(self._ids.__getitem__, range(self._length - 1, -1, -1))

    def __contains__(self, token: Any) -> bool:
        return token in islice(self._ids, self._length)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (list, PromptIds)):
            return NotImplemented
        return self._length == len(other) and (self.shares(other) or self[:] == other[:])

    __hash__ = None  # type: ignore[assignment]  # as lists have none

    def __add__(self, other: list[int]) -> list[int]:
        return [*self, *other]

    def __radd__(self, other: list[int]) -> list[int]:
        return [*other, *self]

    def __reduce__(self) -> tuple[type[list[int]], tuple[list[int]]]:
        return list, (self[:],)

    def __repr__(self) -> str:
        return repr(self[:])


def goes_on_from(ids: Sequence[int], prompt_ids: Sequence[int], completion_ids: Sequence[int]) -> bool:
    """Whether ids begin with those of a prompt and its completion; memory that prompts share is not compared."""
    start, end = len(prompt_ids), len(prompt_ids) + len(completion_ids)
    if len(ids) < end or _listed(ids[start:end]) != _listed(completion_ids):
        return False
    return (isinstance(ids, PromptIds) and ids.shares(prompt_ids)) or _listed(ids[:start]) == _listed(prompt_ids)


def next_prompt(ids: Sequence[int], prompt_ids: Sequence[int], completion_ids: Sequence[int]) -> PromptIds:
    """Return a turn's prompt so that it shares its memory with the turn before, where it goes on from that."""
    if isinstance(ids, PromptIds) or not goes_on_from(ids, prompt_ids, completion_ids):
        return PromptIds(ids)
    return PromptIds(prompt_ids).extended(completion_ids, ids[len(prompt_ids) + len(completion_ids) :])


def _listed(ids: Sequence[int]) -> list[int]:
    return ids if isinstance(ids, list) else list(ids)
