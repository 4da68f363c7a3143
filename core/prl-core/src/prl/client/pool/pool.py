"""The pool as a client: each request goes to an engine that can take it, weights go to all."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from typing import Any

from prl.types import (
    EngineError,
    EngineUnavailableError,
    GenerateRequest,
    GenerateResponse,
    Seats,
    WeightManifest,
    WeightTransfer,
    WeightTransferError,
)

from .connect import Connect, HttpConnect
from .discovery import Discovery
from .member import Member, MemberStatus, Weights
from .roster import PoolSettings, Roster, log
from .session import PoolSession

OFFER_SECONDS = 10.0  # an engine that does not compare names and shapes in this time must not hold the others up


class EnginePool:
    """Engines behind one `EngineClient`. It begins with its first call; everything runs on that call's event loop.

    An engine gets work once it is healthy, serves the pool's model and holds the newest weights that `load_weights`
    brought. It is given up while its connection breaks, its health checks fail or it answers from older weights; its
    requests go to another engine under the same idempotency key: sampling has no effect but the answer, and one answer
    is used. An engine that discovery no longer names ends what it runs and leaves.
    """

    def __init__(
        self, discovery: Discovery, settings: PoolSettings | None = None, *, connect: Connect | None = None
    ) -> None:
        self._roster = Roster(discovery, settings or PoolSettings(), connect or HttpConnect())
        self._seated: list[Member] = []

    def for_rollout(self) -> PoolSession:
        """Return a client for one rollout, whose requests stay on one engine while that has room."""
        return PoolSession(self, self._roster)

    def status(self) -> list[MemberStatus]:
        """Return what is known of each engine."""
        return [member.status() for member in self._roster.members.values()]

    async def generate(self, request: GenerateRequest) -> GenerateResponse:
        """Sample completions on the least loaded engine; raise the `EngineError` family."""
        return await self.for_rollout().generate(request)

    async def chat(self, body: dict[str, Any]) -> dict[str, Any]:
        """Answer a chat body on the least loaded engine."""
        return await self.for_rollout().chat(body)

    async def chat_tokens(self, body: dict[str, Any]) -> dict[str, Any]:
        """Answer a chat body with exact prompt ids on the least loaded engine."""
        return await self.for_rollout().chat_tokens(body)

    async def tokenize(self, body: dict[str, Any]) -> list[int]:
        """Return the ids that an engine renders messages to."""
        return await self.for_rollout().tokenize(body)

    async def health(self) -> bool:
        """Whether any engine takes work; waits a moment for one to come in."""
        with contextlib.suppress(TimeoutError, EngineUnavailableError):
            async with asyncio.timeout(0.5):
                await self._any_ready()
        return self._roster.lanes.is_open

    async def models(self) -> list[dict[str, Any]]:
        """Return the served models; `max_model_len` is the least of the ready engines'."""
        await self._any_ready()
        ready = self._roster.ready
        sizes = [size for member in ready if isinstance(size := member.cards[0].get("max_model_len"), int)]
        first, *rest = [dict(card) for card in ready[0].cards]
        return [first | ({"max_model_len": min(sizes)} if sizes else {}), *rest]

    async def load_weights(self, directory: str, version: int) -> None:
        """Load a published directory into every ready engine; later ones load it before they get work.

        An engine that cannot load it gets no work until it can. Where all refuse it, raise `EngineError`; they go on
        with the weights from before.
        """
        roster = self._roster
        before, wanted = roster.weights, Weights(directory, version)
        roster.set_weights(wanted)
        await self._any_ready()
        ready = roster.ready
        errors = [error for error in await asyncio.gather(*map(self._load, ready)) if error is not None]
        refusals = [error for error in errors if not isinstance(error, EngineUnavailableError)]
        if refusals and len(refusals) == len(ready):
            roster.set_weights(before)
            raise refusals[0]
        await roster.until(lambda: any(member.holds(wanted) for member in roster.ready))

    async def offer_weights(self, manifest: WeightManifest) -> Seats:
        """Offer weights to every engine that is up, also to one that waits for a directory; return all their seats.

        Raises `EngineError` where none is up, or none can take them; waits for nobody to come in.
        """
        self._roster.start()
        members = [member for member in self._roster.members.values() if member.ready or member.waits]
        answers = await asyncio.gather(*(self._offer(member, manifest) for member in members))
        self._seated = [member for member, answer in zip(members, answers, strict=True) if isinstance(answer, Seats)]
        seats = [answer for answer in answers if isinstance(answer, Seats)]
        if not seats:
            raise next((one for one in answers if isinstance(one, EngineError)), self._roster.none_ready())
        names = sorted(f"{member.url} {one.identity}" for member, one in zip(self._seated, seats, strict=True))
        devices = tuple(device for one in seats for device in one.devices)
        return Seats(devices, hashlib.sha256("\n".join(names).encode()).hexdigest())

    async def receive_weights(self, transfer: WeightTransfer) -> None:
        """Have every engine of the last offer receive the weights; one that could not gets no work until it has them.

        Where none could, raise `WeightTransferError`; they go on with the weights from before.
        """
        roster = self._roster
        errors = await asyncio.gather(*(self._receive(member, transfer) for member in self._seated))
        failures = [error for error in errors if error is not None]
        if len(failures) == len(errors):
            raise _nobody_received(transfer, failures)
        roster.set_weights(Weights(None, transfer.version))
        for member in roster.ready:
            if not member.holds(roster.newest()):
                roster.give_up(member, _missed(member, transfer), member.epoch)

    def wants_directory(self) -> bool:
        """Whether an engine waits for a directory of the current weights, which it missed."""
        return any(member.waits for member in self._roster.members.values())

    async def close(self) -> None:
        """End the pool and close its connections; the engines run on."""
        await self._roster.close()

    async def _any_ready(self) -> None:
        await self._roster.until(lambda: self._roster.lanes.is_open)

    async def _offer(self, member: Member, manifest: WeightManifest) -> Seats | EngineError:
        epoch = member.epoch
        try:
            return await member.offer(manifest, OFFER_SECONDS)
        except EngineError as error:
            log.warning("engine %s takes no weights: %s", member.url, error.what)
            if isinstance(error, EngineUnavailableError):
                self._roster.give_up(member, error, epoch)
            return error

    async def _receive(self, member: Member, transfer: WeightTransfer) -> EngineError | None:
        epoch = member.epoch
        try:
            await member.receive(transfer)
        except EngineError as error:
            log.warning("engine %s did not receive weights %d: %s", member.url, transfer.version, error.what)
            if not isinstance(error, WeightTransferError):
                self._roster.give_up(member, error, epoch)
            return error
        return None

    async def _load(self, member: Member) -> EngineError | None:
        epoch = member.epoch
        try:
            await member.load(self._roster.newest)
        except EngineError as error:
            log.warning("engine %s could not load weights: %s", member.url, error.what)
            self._roster.give_up(member, error, epoch)
            return error
        return None


def _nobody_received(transfer: WeightTransfer, failures: list[EngineError]) -> WeightTransferError:
    first = failures[0]
    return WeightTransferError(
        f"no engine received weights {transfer.version}: {first.what}",
        where=first.where,
        next_step=first.next_step or "the weights from before serve on; a directory brings the new ones",
    )


def _missed(member: Member, transfer: WeightTransfer) -> EngineError:
    return EngineError(
        f"it missed weights {transfer.version}", where=member.url, next_step="it gets them from a directory"
    )
