"""Answering a repeated request id once: a retry waits for, or gets again, what the first try sampled."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from prl.types import MalformedRequestError

Answer = dict[str, Any]


@dataclass(eq=False, slots=True)
class _Entry:
    task: asyncio.Task[Answer]
    fingerprint: bytes
    waiters: int = 0
    tokens: int = 0


class RetryBook:
    """Requests in flight and recently finished, by id; at most `remembered_tokens` tokens of finished answers stay."""

    def __init__(self, remembered_tokens: int = 2_000_000) -> None:
        self._limit = remembered_tokens
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._tokens = 0

    async def answer(
        self, key: str | None, fingerprint: bytes, work: Callable[[], Coroutine[Any, Any, Answer]]
    ) -> Answer:
        """Return the answer of `work`, run once for each key. The last waiter to leave cancels it."""
        if key is None:
            return await work()
        entry = self._enter(key, fingerprint, work)
        try:
            return await asyncio.shield(entry.task)
        finally:
            self._leave(key, entry)

    def _enter(self, key: str, fingerprint: bytes, work: Callable[[], Coroutine[Any, Any, Answer]]) -> _Entry:
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry(asyncio.ensure_future(work()), fingerprint)
        elif entry.fingerprint != fingerprint:
            raise MalformedRequestError(
                f"request id {key!r} was used for another request",
                where="request_id",
                next_step="use a new id for each request; the same id is only for retries",
            )
        entry.waiters += 1
        return entry

    def _leave(self, key: str, entry: _Entry) -> None:
        entry.waiters -= 1
        task = entry.task
        if not task.done():
            if entry.waiters == 0:
                task.cancel()
                self._drop(key, entry)
        elif task.cancelled() or task.exception() is not None:
            self._drop(key, entry)  # a failure is not remembered: a retry may succeed
        elif not entry.tokens:
            entry.tokens = max(1, task.result()["usage"]["total_tokens"])
            self._tokens += entry.tokens
            self._trim()

    def _drop(self, key: str, entry: _Entry) -> None:
        if self._entries.get(key) is entry:
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
