"""The routes over HTTP; aiohttp is imported when a gateway starts."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from prl.types import ConfigError, PrlError

from .body import read_body
from .faults import GatewayFault, Refusal, refusal_of
from .retries import Asked, request_key
from .stream import DONE, KEEP_ALIVE, chunks

if TYPE_CHECKING:
    from .gateway import Gateway

Handler = Callable[[Any], Awaitable[Any]]
EVENT_STREAM = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # or nginx keeps events, and comments, to itself
}
KNOWN = "Next: ask for POST /v1/chat/completions or GET /v1/models; the base URL ends in /v1"


def import_web() -> Any:
    """Return `aiohttp.web`, or raise `ConfigError` saying what to install."""
    try:
        return importlib.import_module("aiohttp.web")
    except ImportError as error:
        raise ConfigError(
            "the gateway needs aiohttp, which is not installed",
            where="prl.gateway",
            next_step='pip install "prl-core[client]"',
        ) from error


class Routes:
    """Reads requests, asks the gateway, writes answers."""

    def __init__(self, gateway: Gateway) -> None:
        self._web = import_web()
        self._gateway = gateway
        self._settings = gateway.settings

    def application(self) -> Any:
        """Return the aiohttp application."""
        web = self._web
        app = web.Application(client_max_size=self._settings.max_request_bytes, middlewares=[self._refusing()])
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/v1/models/{model:.+}", self.model)
        app.router.add_get("/health", self.health)
        app.router.add_get("/v1/rollouts", self.rollouts)
        app.router.add_get("/v1/rollouts/{id}", self.rollout)
        app.router.add_delete("/v1/rollouts", self.end_all)
        app.router.add_delete("/v1/rollouts/{id}", self.end)
        return app

    async def chat(self, request: Any) -> Any:
        """`POST /v1/chat/completions`."""
        self._gateway.spaces.check(request.headers)  # before the body is read: strangers send nothing large
        raw = await self._read(request)
        settings = self._settings
        body = read_body(raw, max_messages=settings.max_messages, max_choices=settings.max_choices)
        self._gateway.check_model(body.model)
        space = self._gateway.spaces.find(request.headers)
        send = self._stream if body.stream else self._whole
        try:
            with space.retries.joined(request_key(request.headers, raw), partial(space.complete, body)) as asked:
                return await send(request, asked)
        finally:
            self._gateway.spaces.tidy(space)

    async def models(self, request: Any) -> Any:
        """`GET /v1/models`."""
        self._gateway.spaces.check(request.headers)
        return self._json({"object": "list", "data": [await self._gateway.card()]})

    async def model(self, request: Any) -> Any:
        """`GET /v1/models/{model}`."""
        self._gateway.spaces.check(request.headers)
        self._gateway.check_model(request.match_info["model"])
        return self._json(await self._gateway.card())

    async def health(self, request: Any) -> Any:
        """`GET /health`: whether the engine answers."""
        is_ready = await self._gateway.health()
        return self._json({"status": "ok" if is_ready else "engine_unavailable"}, 200 if is_ready else 503)

    async def rollouts(self, request: Any) -> Any:
        """`GET /v1/rollouts`: the sessions that are open."""
        self._gateway.check_operator(request.headers)
        return self._json({"object": "list", "data": self._gateway.summaries()})

    async def rollout(self, request: Any) -> Any:
        """`GET /v1/rollouts/{id}`: what a session has recorded so far."""
        self._gateway.check_operator(request.headers)
        return self._json(await self._gateway.export(request.match_info["id"]))

    async def end(self, request: Any) -> Any:
        """`DELETE /v1/rollouts/{id}`: end a session; the answer is its record."""
        self._gateway.check_operator(request.headers)
        return self._json(await self._gateway.end(request.match_info["id"]))

    async def end_all(self, request: Any) -> Any:
        """`DELETE /v1/rollouts`: end all sessions; the answer holds their records."""
        self._gateway.check_operator(request.headers)
        return self._json({"object": "list", "data": await self._gateway.end_all()})

    async def _read(self, request: Any) -> bytes:
        try:
            async with asyncio.timeout(self._settings.read_seconds):
                return bytes(await request.read())
        except TimeoutError as error:
            raise GatewayFault(
                f"the body has not come in whole within {self._settings.read_seconds:g} s",
                status=408,
                fault="request_timeout",
                next_step="send it again, faster",
            ) from error

    async def _whole(self, request: Any, asked: Asked) -> Any:
        response = self._json((await asked.answer()).body())
        await response.prepare(request)
        await response.write_eof()
        return response

    async def _stream(self, request: Any, asked: Asked) -> Any:
        stream = self._web.StreamResponse(headers=EVENT_STREAM)
        await self._keep_alive(request, stream, asked)
        try:
            completion = await asked.answer()
        except PrlError as error:
            if not stream.prepared:
                raise
            return await self._end_stream(stream, refusal_of(error))
        if not stream.prepared:
            await stream.prepare(request)
        for chunk in chunks(completion, self._settings.stream_characters):
            await stream.write(b"data: " + msgspec.json.encode(chunk) + b"\n\n")
        await stream.write(DONE)
        await stream.write_eof()
        return stream

    async def _keep_alive(self, request: Any, stream: Any, asked: Asked) -> None:
        """Wait for an answer; one that takes long begins its stream with comments, which clients skip."""
        while not (await asyncio.wait({asked.task}, timeout=self._settings.keep_alive_seconds))[0]:
            if not stream.prepared:
                await stream.prepare(request)
            await stream.write(KEEP_ALIVE)

    async def _end_stream(self, stream: Any, refusal: Refusal) -> Any:
        """Tell an error in a stream that has begun, in the event that OpenAI's SDKs raise; no [DONE] follows."""
        await stream.write(b"data: " + msgspec.json.encode(refusal.body()) + b"\n\n")
        await stream.write_eof()
        return stream

    def _json(self, data: Any, status: int = 200, headers: dict[str, str] | None = None) -> Any:
        return self._web.Response(
            body=msgspec.json.encode(data), status=status, headers=headers, content_type="application/json"
        )

    def _refusing(self) -> Any:
        """Return the middleware that writes every refusal in OpenAI's shape."""
        web = self._web

        @web.middleware  # type: ignore[untyped-decorator]
        async def refuse(request: Any, handler: Handler) -> Any:
            try:
                return await handler(request)
            except PrlError as error:
                refusal = refusal_of(error)
            except web.HTTPRequestEntityTooLarge:
                refusal = self._too_large()
            except web.HTTPException as error:
                what = f"{error.reason}: {request.method} {request.path}. {KNOWN}"
                refusal = Refusal(error.status, what, "unknown_route", headers={"x-should-retry": "false"})
            except ConnectionError:
                if request.transport is not None and not request.transport.is_closing():
                    raise
                return web.Response(status=499)  # the client is gone: there is nobody to tell, and nothing to repair
            return self._json(refusal.body(), refusal.status, refusal.headers)

        return refuse

    def _too_large(self) -> Refusal:
        return GatewayFault(
            f"the body is larger than {self._settings.max_request_bytes} bytes",
            status=413,
            fault="request_too_large",
            next_step="send less, or raise the gateway's limit (--max-request-mb)",
        ).refusal()
