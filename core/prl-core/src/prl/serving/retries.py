"""Answering a repeated request id once: a retry waits for, or gets again, what the first try sampled."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Generic, TypeVar

from prl.types import MalformedRequestError

Answer = TypeVar("Answer")


@dataclass(eq=False, slots=True)
class _Entry(Generic[Answer]):
    future: Future[Answer] | asyncio.Future[Answer]
    fingerprint: bytes
    waiters: int = 0
    tokens: int = 0


class RetryBook(Generic[Answer]):
    """Requests in flight and recently finished, by id; at most `remembered_tokens` tokens of finished answers stay.

    `tokens_of` counts an answer's tokens. Safe from several threads and event loops where the work's futures are.
    """

    def __init__(self, remembered_tokens: int, tokens_of: Callable[[Answer], int]) -> None:
        self._limit = remembered_tokens
        self._tokens_of = tokens_of
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, _Entry[Answer]] = OrderedDict()
        self._tokens = 0

    async def answer(
        self,
        key: str | None,
        fingerprint: Callable[[], bytes],
        begin: Callable[[], Future[Answer] | asyncio.Future[Answer]],
    ) -> Answer:
        """Return the answer of the work that `begin` starts, once for each key. The last waiter to leave cancels it.

        `fingerprint` is of what a retry must repeat; another one under a known key raises `MalformedRequestError`.
        """
        entry = self._enter(key, fingerprint, begin)
        try:
            return await asyncio.shield(asyncio.wrap_future(entry.future))
        finally:
            self._leave(key, entry)

    def _enter(
        self,
        key: str | None,
        fingerprint: Callable[[], bytes],
        begin: Callable[[], Future[Answer] | asyncio.Future[Answer]],
    ) -> _Entry[Answer]:
        if key is None:
            return _Entry(begin(), b"", waiters=1)
        mark = fingerprint()
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                entry = self._entries[key] = _Entry(begin(), mark)
            elif entry.fingerprint != mark:
                raise MalformedRequestError(
                    f"request id {key!r} was used for another request",
                    where="request_id",
                    next_step="use a new id for each request; the same id is only for retries",
                )
            entry.waiters += 1
            return entry

    def _leave(self, key: str | None, entry: _Entry[Answer]) -> None:
        with self._lock:
            entry.waiters -= 1
            if not entry.future.done():
                if entry.waiters == 0:
                    entry.future.cancel()
                    self._drop(key, entry)
            elif entry.future.cancelled() or entry.future.exception() is not None:
                self._drop(key, entry)  # a failure is not remembered: a retry may succeed
            elif key is not None and not entry.tokens:
                entry.tokens = max(1, self._tokens_of(entry.future.result()))
                self._tokens += entry.tokens
                self._trim()

    def _drop(self, key: str | None, entry: _Entry[Answer]) -> None:
        if key is not None and self._entries.get(key) is entry:
            del self._entries[key]

    def _trim(self) -> None:
        """Forget the oldest finished answers beyond the limit; what is in flight stays."""
        for key in list(self._entries):
            if self._tokens <= self._limit:
                return
            entry = self._entries[key]
            if entry.tokens and not entry.waiters:
                self._tokens -= entry.tokens
                del self._entries[key]
