"""How long the event loop keeps others waiting: what rollouts and weights feel when something blocks it."""

from __future__ import annotations

import asyncio
import time
from types import TracebackType

INTERVAL = 0.05


class LagMonitor:
    """A small task that sleeps and notes how much too late it wakes up."""

    def __init__(self, interval: float = INTERVAL) -> None:
        self.interval = interval
        self._lags: list[float] = []
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> LagMonitor:
        """Begin to measure."""
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the task."""
        if self._task is not None:
            self._task.cancel()

    def take(self) -> dict[str, float]:
        """Return the greatest and the mean lag in milliseconds since the last call; nothing where none was measured."""
        lags, self._lags = self._lags, []
        if not lags:
            return {}
        return {"event_loop/lag_max_ms": 1e3 * max(lags), "event_loop/lag_mean_ms": 1e3 * sum(lags) / len(lags)}

    async def _watch(self) -> None:
        while True:
            due = time.monotonic() + self.interval
            await asyncio.sleep(self.interval)
            self._lags.append(max(0.0, time.monotonic() - due))
