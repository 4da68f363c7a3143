"""The engines of a pool: found, brought in with the current weights, watched, given up and let go."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from prl.types import EngineError, EngineUnavailableError

from .connect import Connect
from .discovery import Discovery
from .lanes import Dispatcher
from .member import Member, Weights

LONGEST_ABSENCE = 30.0  # seconds between tries to bring an engine in
FIXED_INTERVAL = 86_400.0  # seconds until fixed addresses are read again, to no effect
log = logging.getLogger("prl.client.pool")


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """How a pool treats its engines.

    `max_concurrency` bounds the requests on one data-parallel rank. `retries` is how often a request that failed for
    its engine's sake is sent again, after pauses that double from `backoff` (seconds). `patience` is how long a request
    waits while no engine is ready (seconds), `health_interval` how often each is asked for its health.
    """

    data_parallel_ranks: int = 1
    max_concurrency: int | None = None
    retries: int = 6
    backoff: float = 0.25
    patience: float = 120.0
    health_interval: float = 5.0


class Roster:
    """Keeps one task for each engine, and one that asks discovery. `weights` is what an engine must hold to work."""

    def __init__(self, discovery: Discovery, settings: PoolSettings, connect: Connect) -> None:
        self.settings = settings
        self.lanes = Dispatcher(self.none_ready)
        self.members: dict[str, Member] = {}
        self.weights: Weights | None = None
        self._discovery = discovery
        self._connect = connect
        self._tasks: dict[asyncio.Task[None], Member | None] = {}
        self._leaving: set[Member] = set()
        self._model: str | None = None
        self._problem = ""
        self._changed = asyncio.Event()
        self._arrived = asyncio.Event()

    def start(self) -> None:
        """Begin to look for engines, on the running event loop; further calls do nothing."""
        if not self._tasks:
            self._spawn(self._discover(), None)

    @property
    def ready(self) -> list[Member]:
        """The engines that take work."""
        return [member for member in self.members.values() if member.ready]

    def give_up(self, member: Member, error: EngineError, epoch: int) -> None:
        """Give an engine no more work until it was brought in anew; what an earlier `epoch` met says nothing of now."""
        if member.epoch != epoch or self.members.get(member.url) is not member:
            return
        log.warning("engine %s gets no work: %s", member.url, error.what)
        member.doubt(error)
        self.lanes.close(member.lanes)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition that an engine which comes in brings about; raise after the pool's patience."""
        self.start()
        try:
            async with asyncio.timeout(self.settings.patience):
                while not condition():
                    await self._changed.wait()
        except TimeoutError:
            raise self.none_ready() from None

    def none_ready(self) -> EngineUnavailableError:
        """Return the error of a pool without an engine: it names each and why it is not in."""
        known = [f"{one.url}: {one.problem or 'ready'}" for one in self.members.values()]
        return EngineUnavailableError(
            f"no engine of the pool was ready within {self.settings.patience:g} s",
            where="; ".join([*([self._problem] if self._problem else []), *known]) or "no engine is known yet",
            next_step="start engines (`prl serve`), or correct base_urls or dns",
        )

    async def close(self) -> None:
        """End all tasks and close all connections."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for member in [*self.members.values(), *self._leaving]:
            member.ready = False
            self.lanes.close(member.lanes)
            await member.close()
        self.members.clear()
        self._leaving.clear()

    def _spawn(self, work: Coroutine[Any, Any, None], member: Member | None) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = member
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        member = self._tasks.pop(task, None)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("the pool no longer looks after %s", member.url if member else "discovery", exc_info=error)

    async def _discover(self) -> None:
        while True:
            try:
                self._set_addresses(list(await self._discovery.addresses()))
            except EngineUnavailableError as error:  # a resolver that fails must not empty the pool
                if self._problem != error.what:
                    log.warning("%s", error.what)
                self._problem = error.what
            await asyncio.sleep(self._discovery.interval or FIXED_INTERVAL)

    def _set_addresses(self, urls: list[str]) -> None:
        self._problem = "" if urls else "discovery names no engine"
        for url in set(self.members) - set(urls):
            self._let_go(self.members.pop(url))
        for url in urls:
            if url not in self.members:
                member = self.members[url] = Member(
                    url,
                    self._connect,
                    ranks=self.settings.data_parallel_ranks,
                    limit=self.settings.max_concurrency,
                )
                self._spawn(self._tend(member), member)

    def _let_go(self, member: Member) -> None:
        log.info("engine %s leaves", member.url)
        member.ready = False
        self.lanes.close(member.lanes)
        for task in [task for task, owner in self._tasks.items() if owner is member]:
            task.cancel()
        self._leaving.add(member)
        self._spawn(self._retire(member), None)

    async def _retire(self, member: Member) -> None:
        while member.active:
            await asyncio.sleep(0.05)
        self._leaving.discard(member)
        await member.close()

    async def _tend(self, member: Member) -> None:
        """Bring an engine in, watch its health, and bring it in again whenever it was given up.

        One that asked to be left alone for a time is.
        """
        absence = self.settings.backoff
        while True:
            member.disturbed.clear()
            rest, member.rest = member.rest, 0.0
            await asyncio.sleep(rest)
            try:
                await self._bring_in(member)
            except EngineError as error:
                if member.problem != error.what:
                    log.warning("engine %s is not in the pool: %s", member.url, error.what)
                member.problem = error.what
                if isinstance(error, EngineUnavailableError):
                    member.abandon()
                await asyncio.sleep(absence)
                absence = min(LONGEST_ABSENCE, absence * 2)
                continue
            absence = self.settings.backoff
            await self._watch(member)

    async def _bring_in(self, member: Member) -> None:
        await member.greet()
        self._check_model(member)
        while self.weights is not None and not member.holds(self.weights):
            if self.weights.directory is None:
                await self._wait_for_directory(member)
            else:
                await member.load(self.newest)
        member.ready, member.problem = True, ""
        log.info("engine %s is ready, weights %s", member.url, member.version)
        self.lanes.open(member.lanes)
        self._changed.set()
        self._changed = asyncio.Event()

    async def _wait_for_directory(self, member: Member) -> None:
        """Return once the member can go on: a directory is there, or it received the weights that came next."""
        member.waits, member.problem = True, "it waits for a directory of the current weights"
        missing = self.weights
        try:
            while self.weights is missing and missing is not None and not member.holds(missing):
                await self.pause_until_weights(self.settings.health_interval)
                if not await member.is_well():
                    raise _unwell(member)
        finally:
            member.waits = False

    async def pause_until_weights(self, seconds: float) -> None:
        """Sleep until weights came in, at most `seconds`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._arrived.wait()

    def set_weights(self, weights: Weights | None) -> None:
        """Say what every engine must hold; wake those that wait for it."""
        self.weights = weights
        self._arrived.set()
        self._arrived = asyncio.Event()

    def newest(self) -> Weights:
        """Return the weights that every engine must hold."""
        assert self.weights is not None
        return self.weights

    def _check_model(self, member: Member) -> None:
        name = str(member.cards[0]["id"]) if member.cards else ""
        self._model = self._model or name
        if not name or name != self._model:
            raise EngineError(
                f"the engine serves {name!r}, the pool {self._model!r}",
                where=member.url,
                next_step="serve one model under one name on every engine (served_model_name)",
            )

    async def _watch(self, member: Member) -> None:
        """Return once the engine was given up."""
        while not member.disturbed.is_set():
            try:
                # not wait_for: in Python 3.11 it can lose the cancellation that ends this task
                async with asyncio.timeout(self.settings.health_interval):
                    await member.disturbed.wait()
            except TimeoutError:
                if not await member.is_well():
                    self.give_up(member, _unwell(member), member.epoch)


def _unwell(member: Member) -> EngineUnavailableError:
    return EngineUnavailableError("health checks fail", where=member.url, next_step="see the engine's log")
