"""A server that is as strict as a stranger's, and the student's renderer over a real vocabulary."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp import web
from fixtures.real_tokenizers import tokenizer_directory

from prl import create_renderer, load_tokenizer
from prl.contracts import Renderer
from prl.tokenizer import Tokenizer
from prl_train.teacher import TeacherRolloutsSection
from prl_train.teacher.client import TeacherClient
from prl_train.teacher.rollouts import TeacherMode

KNOWN = {"model", "messages", "tools", "max_tokens", "temperature", "top_p", "reasoning_effort"}
KEY = "k-4711-very-secret"


class Stranger:
    """Speaks OpenAI's chat API and nothing else: unknown fields are refused, no ids, no log-probabilities."""

    def __init__(self) -> None:
        self.url = ""
        self.answers: list[Any] = []
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        if request.headers.get("Authorization") != f"Bearer {KEY}":
            return web.json_response({"error": {"message": "bad key", "code": "invalid_api_key"}}, status=401)
        unknown = sorted(body.keys() - KNOWN)
        unknown += [name for message in body["messages"] for name in message if "reasoning" in name]
        if unknown:
            return web.json_response({"error": {"message": f"unknown field {unknown[0]}"}}, status=400)
        answer = self.answers.pop(0)
        if isinstance(answer, int):
            return web.json_response({"error": {"message": "later"}}, status=answer)
        return web.json_response(answer)


def said(content: str | None = None, *, finish: str = "stop", **fields: Any) -> dict[str, Any]:
    """Return an answer as OpenAI's servers send it."""
    message = {"role": "assistant", "content": content, "refusal": None, **fields}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish}
    return {"id": "chatcmpl-1", "object": "chat.completion", "choices": [choice], "usage": {"total_tokens": 3}}


def called(name: str, **arguments: Any) -> dict[str, Any]:
    """Return an answer that calls a tool."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    calls = [{"id": "call_1", "type": "function", "function": function}]
    return said(None, finish="tool_calls", tool_calls=calls)


@pytest.fixture
async def stranger() -> AsyncIterator[Stranger]:
    server = Stranger()
    app = web.Application()
    app.router.add_post("/api/v1/chat/completions", server.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}/api/v1"
    yield server
    await runner.cleanup()


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return load_tokenizer(tokenizer_directory("qwen3"))


@pytest.fixture(scope="session")
def render(tokenizer: Tokenizer) -> Callable[..., Renderer]:
    """Make the student's renderer with options."""
    return lambda **options: create_renderer(tokenizer, "qwen3", **options)


MakeMode = Callable[..., TeacherMode]


@pytest.fixture
async def teacher(stranger: Stranger, tokenizer: Tokenizer, render: Callable[..., Renderer]) -> AsyncIterator[MakeMode]:
    """Make the teacher's mode; keywords are settings of the section, `renderer` is the student's."""
    clients: list[TeacherClient] = []

    def make(renderer: Renderer | None = None, **settings: Any) -> TeacherMode:
        values = {"base_url": stranger.url, "model": "big", "api_key_env": "TEACHER_KEY", "retries": 1, **settings}
        section = TeacherRolloutsSection(**values)
        clients.append(TeacherClient(section, {"TEACHER_KEY": KEY}))
        return TeacherMode(clients[-1], renderer or render(), tokenizer, section)

    yield make
    for client in clients:
        await client.close()


class Answers:
    """How a stranger answers."""

    key = KEY
    said = staticmethod(said)
    called = staticmethod(called)


@pytest.fixture
def answers() -> type[Answers]:
    return Answers
