"""An engine reached over HTTP: bytes out, checked answers in, retries under one idempotency key."""

from __future__ import annotations

import asyncio
import importlib
import random
import uuid
from collections.abc import Mapping
from dataclasses import replace
from email.utils import parsedate_to_datetime
from time import time
from typing import Any
from urllib.parse import urlsplit

import msgspec

from prl.types import (
    ConfigError,
    EngineError,
    EngineUnavailableError,
    EngineUnreachableError,
    GenerateRequest,
    GenerateResponse,
    Seats,
    WeightManifest,
    WeightTransfer,
)

from . import wire
from .routes import GenerateRoute, PrlRoute, with_room

RANK_HEADER = "X-data-parallel-rank"
LOAD, OFFER, RECEIVE = "/v1/weights", "/v1/weights/offer", "/v1/weights/receive"
LONGEST_PAUSE = 10.0  # seconds
LONGEST_WISH = 60.0  # seconds; a server that asks for more is asked again, and may say it again
HEALTH_SECONDS = 10.0
LOAD_SECONDS = 1800.0  # a load waits for what runs, and reads many gigabytes: `timeout` is not meant for it
OFFER_SECONDS = 30.0  # an engine only compares names and shapes
KEEP_ALIVE = 4.0  # seconds; less than the 5 of uvicorn, which vLLM keeps too: the server must not be first to close


class HttpEngineClient:
    """Speaks to one engine at `base_url` ("http://host:port").

    A failed connection, 429, 502, 503, 504 and the like are tried again, `retries` times, after pauses that double from
    `backoff` seconds, or as long as the server's `Retry-After` asks for; every try carries the same `request_id`, so
    that a finished answer is repeated rather than sampled again.
    `timeout` (seconds) bounds one try; None waits as long as the engine takes. An answer may be lost on a connection
    that stays open: after each `ask_again` seconds of silence a generate request is sent once more, beside the one that
    waits, where the route carries its key; the engine joins the two. `headers` go with every request (trace
    context, authorisation), and `data_parallel_rank` with every one that names none. `route` is how tokens are asked
    for. Cancelling a call closes its connection, at which the engine aborts the request.
    """

    def __init__(
        self,
        base_url: str,
        *,
        timeout: float | None = None,
        connect_timeout: float = 10.0,
        retries: int = 6,
        backoff: float = 0.25,
        headers: Mapping[str, str] | None = None,
        data_parallel_rank: int | None = None,
        route: GenerateRoute | None = None,
        ask_again: float | None = 60.0,
        health_timeout: float = HEALTH_SECONDS,
    ) -> None:
        check_address(base_url)
        self._aiohttp = import_aiohttp()
        self.base_url = base_url.rstrip("/")
        self._timeout = self._aiohttp.ClientTimeout(total=timeout, sock_connect=connect_timeout)
        self._load_timeout = self._aiohttp.ClientTimeout(total=LOAD_SECONDS, sock_connect=connect_timeout)
        self._offer_timeout = self._aiohttp.ClientTimeout(total=OFFER_SECONDS, sock_connect=connect_timeout)
        self._retries = retries
        self._backoff = backoff
        self._headers = {"Content-Type": "application/json", **_rank(data_parallel_rank), **(headers or {})}
        self._route: GenerateRoute = route or PrlRoute()
        self._ask_again = ask_again if self._route.joins_retries else None
        self._health_timeout = health_timeout
        self._contexts: dict[str, int] = {}
        self._sessions: dict[asyncio.AbstractEventLoop, Any] = {}

    async def generate(self, request: GenerateRequest) -> GenerateResponse:
        """Sample completions for exact prompt ids; raise the `EngineError` family, never return half an answer."""
        route = self._route
        where = self._where(route.path)
        keyed = replace(request, request_id=request.request_id or uuid.uuid4().hex)
        if route.needs_max_tokens and keyed.sampling.max_tokens is None:
            keyed = with_room(keyed, await self._context(keyed.model), where)
        answer = await self._insist(route.path, route.encode(keyed), _rank(request.data_parallel_rank))
        return route.decode(answer, keyed, where)

    async def _insist(self, path: str, body: bytes, headers: Mapping[str, str]) -> bytes:
        """Send a request that the engine knows again by its key; send it once more whenever it stays silent."""
        if self._ask_again is None:
            return await self._send("POST", path, body, headers)
        tries: list[asyncio.Task[bytes]] = []
        try:
            while True:
                tries.append(asyncio.create_task(self._send("POST", path, body, headers)))
                done, _ = await asyncio.wait(tries, timeout=self._ask_again, return_when=asyncio.FIRST_COMPLETED)
                if done:
                    return done.pop().result()
                for old in tries[:-1]:  # the newest has joined by now: the engine goes on for its sake
                    old.cancel()
                tries = tries[-1:]
        finally:
            for one in tries:
                if one.done() and not one.cancelled():
                    one.exception()  # seen, so that nobody is told it was not
                one.cancel()

    async def chat(self, body: dict[str, Any]) -> dict[str, Any]:
        """Send an OpenAI chat body; the engine renders the prompt. Retries carry one `request_id`."""
        return await self._post("/v1/chat/completions", {"request_id": uuid.uuid4().hex, **body})

    async def chat_tokens(self, body: dict[str, Any]) -> dict[str, Any]:
        """Send a chat body whose prompt is its `tokens`, verbatim. Retries carry one `request_id`."""
        return await self._post("/v1/chat/completions/tokens", {"request_id": uuid.uuid4().hex, **body})

    async def tokenize(self, body: dict[str, Any]) -> list[int]:
        """Return the ids that the engine renders `messages` and `tools` to."""
        tokens = (await self._post("/tokenize", body)).get("tokens")
        if not isinstance(tokens, list) or not all(type(token) is int and token >= 0 for token in tokens):
            raise wire.malformed("the answer holds no token ids", self._where("/tokenize"))
        return tokens

    async def _post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return wire.decode_object(await self._send("POST", path, msgspec.json.encode(body)), self._where(path))

    async def _context(self, model: str) -> int:
        """Return the served context of a model (tokens), asked for once."""
        if model not in self._contexts:
            sizes = {str(card["id"]): card.get("max_model_len") for card in await self.models()}
            if not isinstance(size := sizes.get(model), int):
                raise wire.malformed(f"the server does not say how long the context of {model!r} is", "/v1/models")
            self._contexts[model] = size
        return self._contexts[model]

    async def models(self) -> list[dict[str, Any]]:
        """Return the served models; each has `id` and `max_model_len` (tokens)."""
        where = self._where("/v1/models")
        data = wire.decode_object(await self._send("GET", "/v1/models"), where).get("data")
        if not isinstance(data, list) or not all(isinstance(model, dict) and "id" in model for model in data):
            raise wire.malformed("the answer lists no models", where)
        return data

    async def health(self) -> bool:
        """Whether the engine answers and is ready; never raises, never retries."""
        try:
            async with asyncio.timeout(self._health_timeout):
                status, _, _ = await self._once("GET", "/health", None, {})
        except (self._aiohttp.ClientError, OSError, TimeoutError):
            return False
        return status == 200

    async def load_weights(self, directory: str, version: int) -> None:
        """Load a published safetensors directory, which the engine must be able to read, between requests."""
        data = msgspec.json.encode({"directory": directory, "version": version})
        self._check_version(await self._send("POST", LOAD, data, timeout=self._load_timeout), version, LOAD)

    async def offer_weights(self, manifest: WeightManifest) -> Seats:
        """Ask whether these tensors fit the served model, and who would receive them; never tried again."""
        data = msgspec.json.encode({"tensors": manifest.tensors})
        raw = await self._send("POST", OFFER, data, timeout=self._offer_timeout, retries=0)
        try:
            return msgspec.json.decode(raw, type=Seats)
        except msgspec.MsgspecError as error:
            raise wire.malformed(f"the answer names no receivers: {error}", self._where(OFFER)) from error

    async def receive_weights(self, transfer: WeightTransfer) -> None:
        """Have the engine receive the offered tensors from the trainer and load them; never tried again."""
        data = msgspec.json.encode(transfer)
        raw = await self._send("POST", RECEIVE, data, timeout=self._load_timeout, retries=0)
        self._check_version(raw, transfer.version, RECEIVE)

    def _check_version(self, raw: bytes, version: int, path: str) -> None:
        answer = wire.decode_object(raw, self._where(path))
        if answer.get("weight_version") != version:
            raise wire.malformed(
                f"weights {version} were sent, the engine says it serves {answer.get('weight_version')}",
                self._where(path),
            )

    async def close(self) -> None:
        """Close the connections of this event loop."""
        session = self._sessions.pop(asyncio.get_running_loop(), None)
        if session is not None:
            await session.close()

    async def _send(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: Any = None,
        retries: int | None = None,
    ) -> bytes:
        """Return the body of a 200 answer, trying again what may pass."""
        failure: EngineError
        wish: str | None = None
        for attempt in range((self._retries if retries is None else retries) + 1):
            if attempt:
                await asyncio.sleep(max(retry_pause(self._backoff, attempt), wished_pause(wish)))
            wish = None
            try:
                status, answer, wish = await self._once(method, path, body, headers or {}, timeout)
            except (self._aiohttp.ClientError, OSError, TimeoutError) as error:
                failure = self._unreached(path, error, attempt + 1, timeout or self._timeout)
                failure.__cause__ = error
                continue
            if status == 200:
                return answer
            failure = wire.decode_error(status, answer, self._where(path))
            if isinstance(failure, EngineUnavailableError):
                failure.retry_after = wished_pause(wish)
            if status not in wire.TRANSIENT:
                break
        raise failure

    async def _once(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str], timeout: Any = None
    ) -> tuple[int, bytes, str | None]:
        """Send once; return status, body and what the server says of when to try again."""
        async with self._session().request(
            method, self.base_url + path, data=body, headers=headers, timeout=timeout or self._timeout
        ) as response:
            return response.status, await response.read(), response.headers.get("Retry-After")

    def _session(self) -> Any:
        """Return this event loop's session: connections belong to the loop that opened them."""
        loop = asyncio.get_running_loop()
        session = self._sessions.get(loop)
        if session is None:
            # no limit on connections: how many requests run at once is the caller's decision
            connector = self._aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE)
            session = self._aiohttp.ClientSession(connector=connector, headers=self._headers, timeout=self._timeout)
            self._sessions[loop] = session
        return session

    def _where(self, path: str) -> str:
        return f"engine at {self.base_url}, {path}"

    def _unreached(self, path: str, error: BaseException, tries: int, timeout: Any) -> EngineUnavailableError:
        """Return what a failed try means: a slow engine is still there, one that breaks connections may not be."""
        if isinstance(error, TimeoutError) and not isinstance(error, self._aiohttp.ClientConnectionError):
            return EngineUnavailableError(
                f"the engine did not answer within {timeout.total} s ({tries} tries)",
                where=self._where(path),
                next_step="raise the client's timeout, or give the engine less to do at once",
            )
        return EngineUnreachableError(
            f"the engine cannot be reached: {str(error) or type(error).__name__} ({tries} tries)",
            where=self._where(path),
            next_step="start it (`prl serve --engine local ...`), or correct the address",
        )


def check_address(base_url: str) -> None:
    """Raise `ConfigError` unless this is the base URL of a server."""
    parts = urlsplit(base_url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ConfigError(
            f"{base_url!r} is no engine address",
            where="base_url of the engine client",
            next_step='give "http://host:port"',
        )


def _rank(rank: int | None) -> dict[str, str]:
    return {} if rank is None else {RANK_HEADER: str(rank)}


def retry_pause(backoff: float, attempt: int) -> float:
    """Return seconds to wait: doubling, with jitter so that many clients do not return at once."""
    return float(min(LONGEST_PAUSE, backoff * 2 ** (attempt - 1)) * random.uniform(0.5, 1.0))


def wished_pause(header: str | None) -> float:
    """Return seconds to wait as a `Retry-After` has them, a number or a date; 0.0 where it says nothing usable."""
    text = (header or "").strip()
    try:
        seconds = float(text) if text.isascii() and text.isdigit() else parsedate_to_datetime(text).timestamp() - time()
    except (ValueError, OverflowError):
        return 0.0
    return min(max(seconds, 0.0), LONGEST_WISH)


def import_aiohttp() -> Any:
    """Return aiohttp, or raise `ConfigError` with the command that installs it."""
    try:
        return importlib.import_module("aiohttp")
    except ImportError as error:
        raise ConfigError(
            "the engine client needs aiohttp, which is not installed",
            where="prl.client.http",
            next_step='pip install "prl-core[client]"',
        ) from error
