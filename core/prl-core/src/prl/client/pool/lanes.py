"""Who gets which engine: a rollout keeps its own, others the least loaded; what finds no room waits in order."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from .member import Lane


@dataclass(eq=False, slots=True)
class _Waiter:
    place: asyncio.Future[Lane]
    preferred: Lane | None


class Dispatcher:
    """Hands out lanes that are open. Lanes open and close while requests wait."""

    def __init__(self, describe: Callable[[], Exception]) -> None:
        self._open: dict[Lane, None] = {}
        self._waiting: deque[_Waiter] = deque()
        self._describe = describe
        self._turns = 0
        self._closed_at = 0.0

    @property
    def is_open(self) -> bool:
        """Whether any lane takes work."""
        return bool(self._open)

    @property
    def waiting(self) -> int:
        """Requests that wait for room."""
        return sum(not waiter.place.done() for waiter in self._waiting)

    def open(self, lanes: Iterable[Lane]) -> None:
        """Let lanes take work, first what waits."""
        for lane in lanes:
            self._open[lane] = None
        for lane in list(self._open):
            self._fill(lane)

    def close(self, lanes: Iterable[Lane]) -> None:
        """Give lanes no more work; what runs on them goes on."""
        was_open = self.is_open
        for lane in lanes:
            self._open.pop(lane, None)
        if was_open and not self.is_open:
            self._closed_at = time.monotonic()

    async def take(self, preferred: Lane | None, patience: float) -> Lane:
        """Return a lane with room; wait for one. Raise the description's error after `patience` s with none open."""
        lane = self._choose(preferred)
        if lane is not None:
            return self._occupy(lane)
        place: asyncio.Future[Lane] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiter(place, preferred))
        since = time.monotonic()
        try:
            while not place.done():
                left = patience if self._open else max(since, self._closed_at) + patience - time.monotonic()
                if left <= 0:
                    raise self._describe()
                await asyncio.wait({place}, timeout=left)
            return place.result()
        except BaseException:
            if place.done():
                self.give_back(place.result())
            place.cancel()
            raise

    def give_back(self, lane: Lane) -> None:
        """End one request on a lane."""
        lane.active -= 1
        if lane in self._open:
            self._fill(lane)

    def _fill(self, lane: Lane) -> None:
        """Give a lane to who waits: first to its own rollouts and to those that have none, in order, then to any."""
        while lane.has_room and (waiter := self._next_for(lane)) is not None:
            self._waiting.remove(waiter)
            waiter.place.set_result(self._occupy(lane))

    def _next_for(self, lane: Lane) -> _Waiter | None:
        while self._waiting and self._waiting[0].place.done():  # those gave up
            self._waiting.popleft()
        live = (waiter for waiter in self._waiting if not waiter.place.done())
        first = next(live, None)
        candidates = itertools.chain([first] if first else [], live)
        return next((one for one in candidates if one.preferred is lane or one.preferred not in self._open), first)

    def _choose(self, preferred: Lane | None) -> Lane | None:
        """Return the preferred lane if it has room, else the least loaded; equals take turns."""
        if preferred is not None and preferred in self._open and preferred.has_room:
            return preferred
        with_room = (lane for lane in self._open if lane.has_room)
        return min(with_room, key=lambda lane: (lane.active, lane.last_turn), default=None)

    def _occupy(self, lane: Lane) -> Lane:
        self._turns += 1
        lane.last_turn = self._turns
        lane.active += 1
        return lane
