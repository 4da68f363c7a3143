"""A recording HTTP engine and a small renderer that obeys the contract."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest
from aiohttp import web

from prl.client.http import HttpEngineClient
from prl.types import GenerateRequest, GenerateResponse, ParsedResponse, RenderedTokens

START, END = 1, 2


class FakeEngine:
    """Answers each request with the next scripted reply: (status, body), (status, body, headers), or "drop"."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, Any], dict[str, str]]] = []
        self.replies: list[Any] = []
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        self.requests.append((request.path, json.loads(raw) if raw else {}, dict(request.headers)))
        reply = self.replies.pop(0) if self.replies else (200, {})
        if reply == "drop":
            assert request.transport is not None
            request.transport.close()
            return web.Response()
        status, body, *headers = reply
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return web.Response(status=status, body=data, content_type="application/json", headers=dict(*headers))


@pytest.fixture
async def fake() -> AsyncIterator[FakeEngine]:
    engine = FakeEngine()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", engine.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    engine.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield engine
    await runner.cleanup()


@pytest.fixture
async def connect() -> AsyncIterator[Callable[..., HttpEngineClient]]:
    clients: list[HttpEngineClient] = []

    def make(url: str, **options: Any) -> HttpEngineClient:
        clients.append(HttpEngineClient(url, **{"backoff": 0.001} | options))
        return clients[-1]

    yield make
    for client in clients:
        await client.close()


class WordRenderer:
    """Each message is START, one id a character, END; the generation prompt is START."""

    name = "word"
    is_prefix_stable = True

    def __init__(self) -> None:
        self.can_bridge = True
        self.full_renders = 0

    def render_ids(
        self, messages: Sequence[Any], *, tools: Any = None, add_generation_prompt: bool = False
    ) -> list[int]:
        self.full_renders += 1
        return self._framed(messages) + [START] * add_generation_prompt

    def render(
        self, messages: Sequence[Any], *, tools: Any = None, add_generation_prompt: bool = False
    ) -> RenderedTokens:
        return RenderedTokens(self._framed(messages) + [START] * add_generation_prompt, None)

    def bridge_to_next_turn(
        self,
        prompt_ids: Sequence[int],
        completion_ids: Sequence[int],
        new_messages: Sequence[Any],
        *,
        tools: Any = None,
        history: Any = None,
    ) -> RenderedTokens | None:
        if not self.can_bridge:
            return None
        assert history is not None
        assert history[-1]["role"] == "assistant"
        close = [] if completion_ids and completion_ids[-1] == END else [END]
        return RenderedTokens([*prompt_ids, *completion_ids, *close, *self._framed(new_messages), START], None)

    def parse_response(self, ids: Sequence[int], *, tools: Any = None, prompt_ids: Any = None) -> ParsedResponse:
        return ParsedResponse("".join(chr(i) for i in ids if i != END))

    def stream_parser(self, *, tools: Any = None, prompt_ids: Any = None) -> Any:
        raise AssertionError("sessions do not stream")

    def get_stop_token_ids(self) -> list[int]:
        return [END]

    def _framed(self, messages: Sequence[Any]) -> list[int]:
        return [i for m in messages for i in (START, *map(ord, m.get("content") or ""), END)]


class ScriptedEngine:
    """An in-process engine client: records requests, answers with scripted completions or raises scripted errors."""

    def __init__(self, *script: Any) -> None:
        self.script = list(script)
        self.generated: list[GenerateRequest] = []
        self.chats: list[dict[str, Any]] = []

    async def generate(self, request: GenerateRequest) -> GenerateResponse:
        self.generated.append(request)
        return self._next()

    async def chat(self, body: dict[str, Any]) -> dict[str, Any]:
        self.chats.append(body)
        return self._next()

    def _next(self) -> Any:
        answer = self.script.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def models(self) -> list[dict[str, Any]]:
        return []

    async def health(self) -> bool:
        return True

    async def load_weights(self, directory: str, version: int) -> None:
        return None

    async def close(self) -> None:
        return None


@pytest.fixture
def renderer() -> WordRenderer:
    return WordRenderer()


@pytest.fixture
def scripted() -> type[ScriptedEngine]:
    return ScriptedEngine
