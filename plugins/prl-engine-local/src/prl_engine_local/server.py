"""The HTTP face: FastAPI routes over the engine."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
from fastapi import APIRouter, FastAPI, Request, Response

from prl.serving.http import (
    CHAT_BODY,
    ERRORS,
    TypedErrorRoute,
    data_parallel_rank,
    described,
    json_response,
    read_body,
    while_connected,
)
from prl.serving.routes import add_weight_routes
from prl.serving.schemas import GenerateAnswer, GenerateBody, HealthAnswer, ModelsAnswer
from prl.transfer import OfferBody, TransferBody
from prl.types import ConfigError, GenerateResponse, Seats

from .engine import LocalEngine
from .schemas import ChatAnswer, ChatBody, ChatTokensBody, TokenizeAnswer, TokenizeBody


def create_app(engine: LocalEngine) -> FastAPI:
    """Return the ASGI app of a started, starting or stopped engine."""
    app = FastAPI(title="prl local engine", version="1", docs_url=None, redoc_url=None)
    app.router.route_class = TypedErrorRoute
    _add_sampling(app.router, engine)
    _add_chat(app.router, engine)
    add_weight_routes(app.router, lambda _: _Weights(engine))
    _add_status(app.router, engine)
    return app


def _add_sampling(router: APIRouter, engine: LocalEngine) -> None:
    @router.post("/v1/generate", **described(GenerateBody, GenerateAnswer))
    async def generate(request: Request) -> Response:
        """Sample completions for exact prompt ids; log-probabilities come with every sampled id."""
        limits = engine.core.limits
        body = await read_body(request, GenerateBody, limits.body_bytes)
        work = engine.generate(body.request(data_parallel_rank(request, limits)))
        return json_response(_generate_body(await while_connected(request, work)))


def _add_chat(router: APIRouter, engine: LocalEngine) -> None:
    @router.post("/v1/chat/completions", **described(ChatBody, ChatAnswer))
    async def chat(request: Request) -> Response:
        """Render messages with the model's format, sample, and parse the answer."""
        body = await read_body(request, ChatBody, CHAT_BODY)
        rank = data_parallel_rank(request, engine.core.limits)
        return json_response(await while_connected(request, engine.chat.complete(body, data_parallel_rank=rank)))

    @router.post("/v1/chat/completions/tokens", **described(ChatTokensBody, ChatAnswer))
    async def chat_tokens(request: Request) -> Response:
        """Sample for the exact prompt ids in `tokens`, and parse the answer as a chat; messages are not rendered."""
        body = await read_body(request, ChatTokensBody, CHAT_BODY)
        rank = data_parallel_rank(request, engine.core.limits)
        work = engine.chat.complete(body, prompt=body.tokens, data_parallel_rank=rank)
        return json_response(await while_connected(request, work))

    @router.post("/tokenize", **described(TokenizeBody, TokenizeAnswer))
    async def tokenize(request: Request) -> Response:
        """Return the ids that a conversation is rendered to."""
        body = await read_body(request, TokenizeBody, CHAT_BODY)
        return json_response(await while_connected(request, engine.chat.tokenize(body)))


class _Weights:
    """The engine's side of the routes through which it is given weights."""

    def __init__(self, engine: LocalEngine) -> None:
        self._engine = engine

    async def load(self, directory: str, version: int) -> int:
        """Load a directory; return its version."""
        return await self._engine.load_weights(directory, version)

    async def offer(self, body: OfferBody) -> Seats:
        """Check an offer; return the engine's one seat."""
        return await self._engine.offer_weights(body.manifest())

    async def receive(self, body: TransferBody) -> int:
        """Receive what was offered; return its version."""
        return await self._engine.receive_weights(body.transfer())


def _add_status(router: APIRouter, engine: LocalEngine) -> None:
    @router.get("/health", response_model=None, responses={200: {"model": HealthAnswer}, 503: ERRORS[503]})
    async def health() -> Response:
        """Say whether the model is loaded, and how busy the engine is."""
        scheduler = engine.core.scheduler
        scheduler.check_alive()
        running, waiting = scheduler.queue_sizes()
        return json_response(
            {"status": "ok", "weight_version": scheduler.weight_version, "running": running, "waiting": waiting}
        )

    @router.get("/v1/models", response_model=None, responses={200: {"model": ModelsAnswer}, 503: ERRORS[503]})
    async def models() -> Response:
        """Name the served model and its context in tokens."""
        return json_response({"object": "list", "data": engine.models()})


def _generate_body(response: GenerateResponse) -> dict[str, Any]:
    return {
        "choices": response.choices,
        "prompt_token_ids": response.prompt_token_ids,
        "prompt_logprobs": response.prompt_logprobs,
        "usage": response.usage,
        "weight_version": response.weight_version,
        "request_id": response.request_id,
    }


def serve(engine: LocalEngine) -> None:
    """Listen at once (answering 503), load the model, serve until interrupted; raise what kept it from loading."""
    from .loading import check_model_directory

    options = engine.options
    check_model_directory(options.model)
    failure: list[BaseException] = []

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        loading = asyncio.create_task(engine.start())
        loading.add_done_callback(loaded)
        yield
        await asyncio.gather(loading, return_exceptions=True)
        await engine.stop()

    def loaded(task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            failure.append(error)
            server.should_exit = True
        elif engine.is_ready:
            print(f"serving {options.name!r} at http://{options.host}:{options.port}", file=sys.stderr, flush=True)

    app = create_app(engine)
    app.router.lifespan_context = lifespan
    server = uvicorn.Server(
        uvicorn.Config(app, host=options.host, port=options.port, log_level="warning", access_log=False)
    )
    _run(server, options.host, options.port)
    if failure:
        raise failure[0]


def _run(server: uvicorn.Server, host: str, port: int) -> None:
    try:
        with contextlib.suppress(KeyboardInterrupt):  # the server has shut down by then
            server.run()
    except SystemExit as error:  # uvicorn exits where it cannot bind
        raise ConfigError(
            f"the server cannot listen on {host}:{port}",
            where="[engine] host and port",
            next_step="choose a free port, or end the program that uses this one",
        ) from error
