"""One thread for all that is reported: metrics and sinks are served in order, and the event loop waits for none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


class RecordThread:
    """Calls in the order in which they were given. What one raises comes out of `raise_if_failed` or `drain`."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="prl-records")
        self._calls: list[Future[Any]] = []

    def give(self, act: Callable[..., Any], *arguments: Any) -> None:
        """Have `act` called, after what was given before."""
        self._calls.append(self._thread.submit(act, *arguments))

    def raise_if_failed(self) -> None:
        """Raise what a call raised; forget those that are done."""
        done = [call for call in self._calls if call.done()]
        self._calls = [call for call in self._calls if not call.done()]
        for call in done:
            call.result()

    async def drain(self) -> None:
        """Wait until all calls are done; raise what one of them raised."""
        await asyncio.gather(*map(asyncio.wrap_future, self._calls), return_exceptions=True)
        self.raise_if_failed()

    async def close(self) -> None:
        """Wait until all calls are done, and end the thread."""
        await asyncio.to_thread(self._thread.shutdown)
