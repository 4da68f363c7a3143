"""One rollout's way through the pool: it stays on its engine, and moves where that has no room or is gone."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from prl.client.http import retry_pause
from prl.contracts import TokenChatClient
from prl.types import (
    EngineError,
    EngineUnavailableError,
    EngineUnreachableError,
    GenerateRequest,
    GenerateResponse,
    MalformedResponseError,
    RequestAbortedError,
)

from .member import Lane
from .roster import Roster

if TYPE_CHECKING:
    from .pool import EnginePool

GARBLED_RETRIES = 2  # how often a request is sent again for an answer that cannot be trusted
Answer = TypeVar("Answer")


class PoolSession:
    """The pool as one rollout sees it; an `EngineClient`."""

    def __init__(self, pool: EnginePool, roster: Roster) -> None:
        self._pool = pool
        self._roster = roster
        self._lane: Lane | None = None

    @property
    def url(self) -> str | None:
        """The engine of the last request, None before the first."""
        return None if self._lane is None else self._lane.url

    async def generate(self, request: GenerateRequest) -> GenerateResponse:
        """Sample completions; every try carries one idempotency key, also on another engine."""
        return await self._send(
            lambda client, key: client.generate(replace(request, request_id=key)),
            lambda answer: answer.weight_version,
            request.request_id,
        )

    async def chat(self, body: dict[str, Any]) -> dict[str, Any]:
        """Answer a chat body; every try carries one `request_id`."""
        return await self._send(
            lambda client, key: client.chat({**body, "request_id": key}), _version_of, body.get("request_id")
        )

    async def chat_tokens(self, body: dict[str, Any]) -> dict[str, Any]:
        """Answer a chat body with exact prompt ids; every try carries one `request_id`."""
        return await self._send(
            lambda client, key: client.chat_tokens({**body, "request_id": key}), _version_of, body.get("request_id")
        )

    async def tokenize(self, body: dict[str, Any]) -> list[int]:
        """Return the ids that an engine renders messages to."""
        return await self._send(lambda client, _: client.tokenize(body), lambda _: None)

    async def models(self) -> list[dict[str, Any]]:
        """Return the pool's models."""
        return await self._pool.models()

    async def health(self) -> bool:
        """Whether any engine of the pool takes work."""
        return await self._pool.health()

    async def load_weights(self, directory: str, version: int) -> None:
        """Load weights into the whole pool."""
        await self._pool.load_weights(directory, version)

    async def close(self) -> None:
        """Release nothing: the pool belongs to whoever made it."""

    async def _send(
        self,
        ask: Callable[[TokenChatClient, str], Awaitable[Answer]],
        version_of: Callable[[Answer], int | None],
        name: str | None = None,
    ) -> Answer:
        """Ask one engine; where that fails for the engine's sake, ask again, on another if there is one.

        All tries carry the key `name`, until an answer is thrown away for its weights: an engine would repeat it.
        """
        settings = self._roster.settings
        self._roster.start()
        garbled = 0
        name = key = name or uuid.uuid4().hex
        for attempt in range(settings.retries + 1):
            if attempt:
                await asyncio.sleep(retry_pause(settings.backoff, attempt))
            lane = self._lane = await self._roster.lanes.take(self._lane, settings.patience)
            member = lane.member
            epoch, sent = member.epoch, member.version
            try:
                answer = await member.ask(ask(lane.client, key))
                if member.is_stale(sent, version_of(answer)):
                    key = f"{name}.{attempt + 1}"
                    raise _began_anew(lane.url, sent, version_of(answer))
                return answer
            except EngineUnavailableError as error:
                failure: EngineError = error
                self._roster.give_up(member, error, epoch)
            except RequestAbortedError as error:  # it stops, or was told to drop the request; the answer is lost
                failure = error
            except MalformedResponseError as error:  # garbled on its way, or wrong for good
                failure = error
                garbled += 1
                if garbled > GARBLED_RETRIES:
                    break
            finally:
                self._roster.lanes.give_back(lane)
        raise failure


def _began_anew(url: str, sent: int | None, answered: int | None) -> EngineUnreachableError:
    return EngineUnreachableError(
        f"the engine held weights {sent}, and answered from weights {answered}: it was started anew",
        where=url,
        next_step="see why it was; the pool loads the current weights into it before it gets work",
    )


def _version_of(answer: dict[str, Any]) -> int | None:
    version = answer.get("weight_version")
    return version if isinstance(version, int) else None
