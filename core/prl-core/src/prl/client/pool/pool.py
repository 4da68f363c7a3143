"""The pool as a client: each request goes to an engine that can take it, weights go to all."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from prl.types import EngineError, EngineUnavailableError, GenerateRequest, GenerateResponse

from .connect import Connect, HttpConnect
from .discovery import Discovery
from .member import Member, MemberStatus, Weights
from .roster import PoolSettings, Roster, log
from .session import PoolSession


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
        roster.weights = wanted
        await self._any_ready()
        ready = roster.ready
        errors = [error for error in await asyncio.gather(*map(self._load, ready)) if error is not None]
        refusals = [error for error in errors if not isinstance(error, EngineUnavailableError)]
        if refusals and len(refusals) == len(ready):
            roster.weights = before
            raise refusals[0]
        await roster.until(lambda: any(member.weights == wanted for member in roster.ready))

    async def close(self) -> None:
        """End the pool and close its connections; the engines run on."""
        await self._roster.close()

    async def _any_ready(self) -> None:
        await self._roster.until(lambda: self._roster.lanes.is_open)

    async def _load(self, member: Member) -> EngineError | None:
        epoch = member.epoch
        try:
            await member.load(self._roster.newest)
        except EngineError as error:
            log.warning("engine %s could not load weights: %s", member.url, error.what)
            self._roster.give_up(member, error, epoch)
            return error
        return None
