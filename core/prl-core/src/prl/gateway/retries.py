"""A request that is sent again is answered once.

A client that lost its answer sends the same body again. That it is the same request, and not one more sample of the
same prompt, is known where it carries an `Idempotency-Key` seen before, where its SDK counts tries
(`X-Stainless-Retry-Count` of 1 or more), or where the answer to the same body never went out whole.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from .answer import Completion
from .faults import GatewayFault, session_closed

KEY_HEADER = "Idempotency-Key"
COUNT_HEADER = "X-Stainless-Retry-Count"
REMEMBERED = 1024


@dataclass(frozen=True, slots=True)
class RequestKey:
    """Which request this is: `name` of it, what its body was, whether it says that it was sent before."""

    name: bytes
    fingerprint: bytes
    is_again: bool


def request_key(headers: Mapping[str, str], raw: bytes) -> RequestKey:
    """Return the key of a request by its headers and its body."""
    fingerprint = hashlib.sha256(raw).digest()
    named = headers.get(KEY_HEADER)
    if named:
        return RequestKey(b"key:" + named.encode(errors="replace"), fingerprint, True)
    count = headers.get(COUNT_HEADER, "0")
    return RequestKey(b"body:" + fingerprint, fingerprint, count.isdigit() and int(count) > 0)


@dataclass(eq=False, slots=True)
class Asked:
    """A request that runs or was answered.

    `waiters` wait for its answer, or write it out; one of them has, whole, where `is_delivered`. Where `is_kept`, what
    was sampled is being written down: it is not aborted any more, since its retry shall get it.
    """

    key: RequestKey
    task: asyncio.Future[Completion] = field(init=False)
    waiters: int = 0
    is_kept: bool = False
    is_delivered: bool = False
    fault: Callable[[], GatewayFault] = session_closed

    def abort(self, fault: Callable[[], GatewayFault] = session_closed) -> None:
        """Stop what runs, unless it is being written down; who waits for it gets the fault."""
        if not self.is_kept:
            self.fault = fault
            self.task.cancel()

    async def answer(self) -> Completion:
        """Wait for the answer; who stops waiting does not end the request."""
        try:
            return await asyncio.shield(self.task)
        except asyncio.CancelledError:
            if self.task.cancelled():  # the session ended it; nobody cancelled this wait
                raise self.fault() from None
            raise

    @property
    def has_answer(self) -> bool:
        """Whether it came to an answer."""
        return self.task.done() and not self.task.cancelled() and self.task.exception() is None

    @property
    def is_lost(self) -> bool:
        """Whether there is an answer, or one about to be, that nobody got, nor is getting."""
        return (self.is_kept or self.task.done()) and not self.is_delivered and not self.waiters


class Retries:
    """The requests of one session: those that run, and the last answered ones."""

    def __init__(self, on_delivered: Callable[[Asked], None], remembered: int = REMEMBERED) -> None:
        self._on_delivered = on_delivered
        self._remembered = remembered
        self._asked: OrderedDict[bytes, Asked] = OrderedDict()

    @contextmanager
    def joined(self, key: RequestKey, work: Callable[[Asked], Coroutine[Any, Any, Completion]]) -> Iterator[Asked]:
        """Begin `work`, or join the same request from before, until the answer was written out.

        The last to leave a request that still samples aborts it.
        """
        asked = self._again(key)
        if asked is None:
            asked = self._asked[key.name] = Asked(key)
            asked.task = asyncio.ensure_future(work(asked))
            asked.task.add_done_callback(_look_at)
        self._asked.move_to_end(key.name)
        asked.waiters += 1
        try:
            yield asked
            if not asked.is_delivered:
                asked.is_delivered = True
                self._on_delivered(asked)
        finally:
            self._leave(key, asked)

    def restore(self, key: RequestKey, answer: Completion) -> None:
        """Remember an answer that an earlier process gave, and that nobody may have got."""
        asked = self._asked[key.name] = Asked(key)
        asked.task = asyncio.get_running_loop().create_future()
        asked.task.set_result(answer)
        self._drop_oldest()

    def delivered(self, name: bytes) -> None:
        """Take note that an earlier process gave this answer whole."""
        if name in self._asked:
            self._asked[name].is_delivered = True

    def forget(self, is_gone: Callable[[Completion], bool]) -> None:
        """Let go of answers whose turns were given away: their tokens would stay in memory."""
        for name, asked in list(self._asked.items()):
            if not asked.waiters and asked.has_answer and is_gone(asked.task.result()):
                del self._asked[name]

    @property
    def is_busy(self) -> bool:
        """Whether a request runs."""
        return any(not asked.task.done() for asked in self._asked.values())

    def _again(self, key: RequestKey) -> Asked | None:
        """Return the request that this one repeats, if it does."""
        asked = self._asked.get(key.name)
        if asked is None or (asked.task.done() and not asked.has_answer):
            return None
        if asked.key.fingerprint != key.fingerprint:
            raise GatewayFault(
                "this idempotency key was used for another body",
                fault="idempotency_key_reused",
                param=KEY_HEADER,
                next_step="use a new key for each request, and the same one for its retries only",
            )
        return asked if key.is_again or asked.is_lost else None

    def _leave(self, key: RequestKey, asked: Asked) -> None:
        asked.waiters -= 1
        if not asked.waiters and not asked.has_answer:
            asked.abort()
            if (asked.task.done() or not asked.is_kept) and self._asked.get(key.name) is asked:
                del self._asked[key.name]
        self._drop_oldest()

    def _drop_oldest(self) -> None:
        while len(self._asked) > self._remembered and next(iter(self._asked.values())).task.done():
            self._asked.popitem(last=False)


def _look_at(task: asyncio.Future[Completion]) -> None:
    """Take the error of a request that nobody waits for any more."""
    if not task.cancelled():
        task.exception()
