"""A request that is sent again is answered once.

A client that lost its answer sends the same body again. That it is the same request, and not one more sample of the
same prompt, is known where it carries an `Idempotency-Key` seen before, where its SDK counts tries
(`X-Stainless-Retry-Count` of 1 or more), or where the answer to the same body never went out whole.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
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
    """A request that runs or was answered. `is_delivered` is set by whoever wrote the answer out whole."""

    task: asyncio.Task[Completion]
    fingerprint: bytes
    waiters: int = 0
    is_delivered: bool = False


class Retries:
    """The requests of one session: those that run, and the last answered ones."""

    def __init__(self, remembered: int = REMEMBERED) -> None:
        self._remembered = remembered
        self._asked: OrderedDict[bytes, Asked] = OrderedDict()

    async def answer(
        self, key: RequestKey, work: Callable[[], Coroutine[Any, Any, Completion]]
    ) -> tuple[Completion, Asked]:
        """Return the answer of `work`, or of the same request before. The last to leave a request aborts it."""
        asked = self._again(key)
        if asked is None:
            asked = self._asked[key.name] = Asked(asyncio.ensure_future(work()), key.fingerprint)
        self._asked.move_to_end(key.name)
        asked.waiters += 1
        try:
            return await asyncio.shield(asked.task), asked
        except asyncio.CancelledError:
            if asked.task.cancelled():  # the session ended it; nobody cancelled this wait
                raise session_closed() from None
            raise
        finally:
            self._leave(key, asked)

    @property
    def is_busy(self) -> bool:
        """Whether a request runs."""
        return any(not asked.task.done() for asked in self._asked.values())

    def _again(self, key: RequestKey) -> Asked | None:
        """Return the request that this one repeats, if it does."""
        asked = self._asked.get(key.name)
        if asked is None:
            return None
        if asked.fingerprint != key.fingerprint:
            raise GatewayFault(
                "this idempotency key was used for another body",
                fault="idempotency_key_reused",
                param=KEY_HEADER,
                next_step="use a new key for each request, and the same one for its retries only",
            )
        lost = asked.task.done() and not asked.is_delivered
        return asked if key.is_again or lost else None

    def _leave(self, key: RequestKey, asked: Asked) -> None:
        asked.waiters -= 1
        task = asked.task
        if not task.done() and not asked.waiters:
            task.cancel()
        failed = not task.done() or task.cancelled() or task.exception() is not None
        if not asked.waiters and failed and self._asked.get(key.name) is asked:
            del self._asked[key.name]
        while len(self._asked) > self._remembered and next(iter(self._asked.values())).task.done():
            self._asked.popitem(last=False)
