"""A gateway over real HTTP on a free port, in front of an engine that says what a test writes down."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest

from prl.gateway import Gateway, GatewaySession, GatewaySettings

from .small import TalkingEngine, small_renderer

KEY = "client-key"
OPERATOR = "operator-key"


@dataclass
class Answer:
    status: int
    body: Any
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def message(self) -> dict[str, Any]:
        assert self.status == 200, self.body
        return dict(self.body["choices"][0]["message"])

    @property
    def error(self) -> dict[str, Any]:
        assert self.status != 200, self.body
        return dict(self.body["error"])


class Served:
    """A running gateway and ways to talk to it."""

    def __init__(self, gateway: Gateway, engine: TalkingEngine, url: str, http: aiohttp.ClientSession) -> None:
        self.gateway = gateway
        self.engine = engine
        self.url = url
        self.http = http

    async def send(
        self, method: str, path: str, body: Any = None, *, key: str | None = KEY, headers: dict[str, str] | None = None
    ) -> Answer:
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        sent = {**({"Authorization": f"Bearer {key}"} if key else {}), **(headers or {})}
        async with self.http.request(method, self.url + path, data=data, headers=sent) as answer:
            raw = await answer.read()
            is_json = answer.content_type == "application/json"
            return Answer(answer.status, json.loads(raw) if is_json else raw.decode(), dict(answer.headers))

    async def chat(
        self, messages: Any, *, key: str = KEY, headers: dict[str, str] | None = None, **fields: Any
    ) -> Answer:
        body = {"model": "small", "messages": messages, **fields}
        return await self.send("POST", "/chat/completions", body, key=key, headers=headers)

    async def stream(self, messages: Any, *, key: str = KEY, **fields: Any) -> list[dict[str, Any]]:
        """Return the events of a stream, which must end as OpenAI's do."""
        answer = await self.chat(messages, key=key, stream=True, **fields)
        assert answer.status == 200, answer.body
        *events, last, rest = answer.body.split("\n\n")
        assert (last, rest) == ("data: [DONE]", "")
        return [json.loads(event.removeprefix("data: ")) for event in events]

    def sessions(self) -> list[GatewaySession]:
        return list(self.gateway._sessions.values())

    @property
    def session(self) -> GatewaySession:
        [only] = self.sessions()
        return only

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not is_so():
                await asyncio.sleep(0.005)


@pytest.fixture
async def serve() -> AsyncIterator[Callable[..., Any]]:
    """Start gateways with some settings; the test ends them."""
    running: list[Served] = []

    async def start(renderer: Any = None, **changes: Any) -> Served:
        settings = GatewaySettings(**{"api_keys": (KEY,), "operator_key": OPERATOR, **changes})
        engine = TalkingEngine()
        gateway = Gateway(engine, renderer or small_renderer(), model="small", settings=settings)
        try:
            url = await gateway.start()
        except BaseException:
            await gateway.close()
            raise
        served = Served(gateway, engine, url, aiohttp.ClientSession())
        running.append(served)
        return served

    yield start
    for served in running:
        await served.http.close()
        await served.gateway.close()


@pytest.fixture
async def served(serve: Callable[..., Any]) -> Served:
    result: Served = await serve()
    return result
