"""One engine of a pool: whether it may have work, which weights it holds, and why not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from prl.contracts import TokenChatClient, WeightReceiver
from prl.types import (
    EngineError,
    EngineUnavailableError,
    EngineUnreachableError,
    Seats,
    WeightManifest,
    WeightTransfer,
    WeightTransferError,
)

from .connect import Connect

MISSED_CHECKS = 2  # health checks in a row that an engine may fail to answer
LOAD_GRACE = 300.0  # seconds: while it loads weights, a server may be too busy to tell that it is well
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Weights:
    """A version of the weights, and the directory where it is published; None where it was only sent."""

    directory: str | None
    version: int

    def is_as(self, other: Weights) -> bool:
        """Whether both are the same weights: what was sent is what a directory of that version holds."""
        return self.version == other.version and (
            self.directory == other.directory or None in (self.directory, other.directory)
        )


@dataclass(eq=False, slots=True)
class Lane:
    """One data-parallel rank of one engine; at most `limit` requests run on it at once (None: as many as come)."""

    member: Member
    client: TokenChatClient
    limit: int | None = None
    active: int = 0
    last_turn: int = 0

    @property
    def url(self) -> str:
        """The engine's address."""
        return self.member.url

    @property
    def has_room(self) -> bool:
        """Whether one more request may run here."""
        return self.limit is None or self.active < self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberStatus:
    """What is known of one engine; `problem` is why it gets no work, "" where it does."""

    url: str
    ready: bool
    active: int
    weight_version: int | None
    problem: str


class Member:
    """One engine.

    `ready` is whether it takes work. `weights` is None while it is unknown what it holds. `epoch` counts how often it
    was given up. `waits` is whether it only lacks a directory of the current weights.
    """

    def __init__(self, url: str, connect: Connect, *, ranks: int, limit: int | None) -> None:
        self.url = url
        numbers: Sequence[int | None] = range(ranks) if ranks > 1 else [None]
        self.lanes = [Lane(self, connect(url, number), limit) for number in numbers]
        self.client = self.lanes[0].client
        self.ready = False
        self.weights: Weights | None = None
        self.cards: list[dict[str, object]] = []
        self.problem = "not reached yet"
        self.waits = False
        self.rest = 0.0  # seconds for which it asked to be left alone
        self.disturbed = asyncio.Event()
        self.epoch = 0
        self._missed = 0
        self._loading = asyncio.Lock()
        self._asked: dict[asyncio.Timeout, float] = {}

    @property
    def active(self) -> int:
        """Requests that run on it."""
        return sum(lane.active for lane in self.lanes)

    @property
    def version(self) -> int | None:
        """The version that it holds, None while that is unknown."""
        return None if self.weights is None else self.weights.version

    def status(self) -> MemberStatus:
        """Return what is known of it."""
        return MemberStatus(
            url=self.url,
            ready=self.ready,
            active=self.active,
            weight_version=self.version,
            problem="" if self.ready else self.problem,
        )

    def doubt(self, error: EngineError) -> None:
        """Note that a request failed. Behind a broken connection may be a new process: its weights are unknown."""
        self.problem = error.what
        if isinstance(error, EngineUnavailableError):
            self.rest = error.retry_after
        if isinstance(error, EngineUnreachableError):
            self.weights = None
        self.ready = False
        self.epoch += 1
        self.disturbed.set()

    async def ask(self, work: Awaitable[Answer], *, grace: float = 0.0) -> Answer:
        """Await what was asked of the engine; raise `EngineUnavailableError` once it is plain that none will come.

        For `grace` seconds it is waited for whatever the engine's health.
        """
        try:
            async with asyncio.timeout(None) as scope:
                self._asked[scope] = asyncio.get_running_loop().time() + grace
                try:
                    return await work
                finally:
                    self._asked.pop(scope, None)
        except TimeoutError:
            raise EngineUnavailableError(
                f"the engine no longer answers: {self.problem}",
                where=self.url,
                next_step="see its log; what was asked of it is asked again, of another engine if there is one",
            ) from None

    def abandon(self) -> None:
        """End what waits for the engine's answers: it hangs, or is cut off, and its connections stay open."""
        now = asyncio.get_running_loop().time()
        for scope in [scope for scope, earliest in self._asked.items() if earliest <= now]:
            del self._asked[scope]
            scope.reschedule(now)

    async def is_well(self) -> bool:
        """Ask for its health; it counts as unwell after two checks in a row without a yes."""
        self._missed = 0 if await self.client.health() else self._missed + 1
        return self._missed < MISSED_CHECKS

    async def greet(self) -> None:
        """Raise `EngineUnavailableError` unless the engine is well; note what it serves, and whether it began anew."""
        if not await self.client.health():
            raise EngineUnavailableError("the engine is not healthy", where=self.url, next_step="see its log")
        self._missed = 0
        self.cards = list(await self.client.models())
        served = self.cards[0].get("weight_version") if self.cards else None
        if isinstance(served, int) and served != self.version:
            self.weights = None  # it is another process than before

    async def load(self, current: Callable[[], Weights]) -> None:
        """Bring in the weights that are current when its turn comes; loads run one at a time."""
        async with self._loading:
            wanted = current()
            if self.holds(wanted) or wanted.directory is None:
                return
            self.weights = None  # a load that fails half-way leaves it unknown
            await self.ask(self.client.load_weights(wanted.directory, wanted.version), grace=LOAD_GRACE)
            self.weights = wanted

    def holds(self, wanted: Weights) -> bool:
        """Whether it is known to hold these weights."""
        return self.weights is not None and self.weights.is_as(wanted)

    async def offer(self, manifest: WeightManifest, seconds: float) -> Seats:
        """Ask what it needs to receive weights; raise `EngineError` where it cannot, or says nothing for `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                return await self._receiver().offer_weights(manifest)
        except TimeoutError:
            raise EngineUnavailableError(
                f"the engine did not answer within {seconds:g} s what weights it takes",
                where=self.url,
                next_step="see its log",
            ) from None

    async def receive(self, transfer: WeightTransfer) -> None:
        """Have it receive and load weights; after a `WeightTransferError` it holds those from before."""
        async with self._loading:
            held, self.weights = self.weights, None
            try:
                await self.ask(self._receiver().receive_weights(transfer), grace=transfer.seconds)
            except WeightTransferError:
                self.weights = held
                raise
            self.weights = Weights(None, transfer.version)

    def _receiver(self) -> WeightReceiver:
        if isinstance(self.client, WeightReceiver):
            return self.client
        raise EngineError(
            "its client cannot send it weights over a process group",
            where=self.url,
            next_step='use weight_transfer = "directory"',
        )

    def is_stale(self, sent: int | None, answered: int | None) -> bool:
        """Whether an answer comes from older weights than the engine held when it was asked: it began anew since."""
        if sent is None or answered is None:
            return False
        return answered < (sent if self.version is None else min(sent, self.version))

    async def close(self) -> None:
        """Close its connections."""
        for lane in self.lanes:
            await lane.client.close()
