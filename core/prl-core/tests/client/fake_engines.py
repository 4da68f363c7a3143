"""Small HTTP engines with weights, limits and faults, that can be stopped and started on their port."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from fixtures.ports import free_port

from prl.types import UNPUBLISHED

Fault = Callable[[web.Request], Awaitable[web.StreamResponse]]


class FakeServer:
    """Answers token 7 and what weights it holds. `faults` are taken one a request, before the usual answer."""

    def __init__(self, model: str = "m") -> None:
        self.model = model
        self.version = UNPUBLISHED
        self.healthy = True
        self.refuses_weights = False
        self.delay = 0.0
        self.load_delay = 0.0
        self.faults: list[Fault] = []
        self.requests: list[dict[str, Any]] = []
        self.ranks: Counter[str | None] = Counter()
        self.loads: list[int] = []
        self.running = 0
        self.most_running = 0
        self.port = free_port()  # of its own also while it is down: it comes back there
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Listen, with the weights of a new process."""
        self.version = UNPUBLISHED
        app = web.Application()
        app.router.add_post("/v1/weights", self._weights)
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/{path:.*}", self._generate)
        self._runner = web.AppRunner(app, shutdown_timeout=0.01)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()

    async def stop(self) -> None:
        """Close every connection and stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _health(self, request: web.Request) -> web.Response:
        return web.json_response({}, status=200 if self.healthy else 503)

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": self.model, "max_model_len": 100 + self.port % 7}]})

    async def _weights(self, request: web.Request) -> web.Response:
        body = await request.json()
        await asyncio.sleep(self.load_delay)
        if self.refuses_weights:
            return error(400, "bad_weights", "does not fit")
        self.version = body["version"]
        self.loads.append(self.version)
        return web.json_response({"status": "ok", "weight_version": self.version})

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read())
        self.requests.append(body)
        self.ranks[request.headers.get("X-data-parallel-rank")] += 1
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        version = self.version
        try:
            if self.faults:
                return await self.faults.pop(0)(request)
            await asyncio.sleep(self.delay)
        finally:
            self.running -= 1
        choice = {"token_ids": [7], "logprobs": [-0.5], "finish_reason": "stop"}
        return web.json_response(
            {"choices": [choice], "weight_version": version, "prompt_token_ids": body.get("prompt_token_ids")}
        )


def error(status: int, code: str, message: str = "no") -> web.Response:
    return web.json_response({"error": {"code": code, "message": message}}, status=status)


async def limited(request: web.Request) -> web.StreamResponse:
    """Limit the rate, and say when to come back."""
    answer = error(429, "rate_limit_exceeded", "too many")
    answer.headers["Retry-After"] = "1"
    return answer


async def reset(request: web.Request) -> web.StreamResponse:
    """Break the connection before the answer."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def half(request: web.Request) -> web.StreamResponse:
    """Promise a whole answer, send half of it, break the connection."""
    response = web.StreamResponse(headers={"Content-Length": "400"})
    await response.prepare(request)
    await response.write(b'{"choices": [{"token_ids": [7], "logpr')
    return await reset(request)


async def unavailable(request: web.Request) -> web.StreamResponse:
    return error(503, "engine_unavailable", "still loading")


async def busy(request: web.Request) -> web.StreamResponse:
    return web.Response(status=429)


async def hang(request: web.Request) -> web.StreamResponse:
    await asyncio.sleep(3600)
    return web.Response()


async def aborted(request: web.Request) -> web.StreamResponse:
    choice = {"token_ids": [7], "logprobs": [-0.5], "finish_reason": "abort"}
    return web.json_response({"choices": [choice], "weight_version": 0})


async def too_long(request: web.Request) -> web.StreamResponse:
    return error(400, "prompt_too_long")


async def nonsense(request: web.Request) -> web.StreamResponse:
    return web.Response(body=b"<html>")
