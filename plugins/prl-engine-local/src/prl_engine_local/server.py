"""The HTTP face: FastAPI routes over the engine, typed errors, and aborts for clients that go away."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Awaitable
from typing import Any, TypeVar

import msgspec
import uvicorn
from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, ValidationError

from prl.transfer import OfferAnswer, OfferBody, TransferBody
from prl.types import (
    ConfigError,
    EngineUnavailableError,
    GenerateResponse,
    MalformedRequestError,
    PrlError,
    PromptTooLongError,
    RenderError,
    RequestAbortedError,
    WeightTransferError,
)

from .engine import LocalEngine
from .errors import InvalidFieldsError, UnknownModelError, WeightLoadError
from .schemas import (
    ChatAnswer,
    ChatBody,
    ChatTokensBody,
    ErrorAnswer,
    GenerateAnswer,
    GenerateBody,
    HealthAnswer,
    ModelsAnswer,
    TokenizeAnswer,
    TokenizeBody,
    WeightsAnswer,
    WeightsBody,
)

RANK_HEADER = "X-data-parallel-rank"
ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorAnswer, "description": "The request cannot be served; `code` says why."},
    404: {"model": ErrorAnswer, "description": "Unknown model."},
    422: {"model": ErrorAnswer, "description": "Fields are missing, unknown or out of range."},
    500: {"model": ErrorAnswer, "description": "The engine's computation failed."},
    503: {"model": ErrorAnswer, "description": "The engine is not ready."},
}
NOT_ARRIVED: dict[int | str, dict[str, Any]] = {
    409: {"model": ErrorAnswer, "description": "Weights did not arrive; those from before serve on."},
}
Body = TypeVar("Body", bound=BaseModel)
Result = TypeVar("Result")


class ClientGoneError(PrlError):
    """The client closed its connection before the answer was ready."""

    code = "client_gone"


STATUS: dict[type, int] = {
    ClientGoneError: 499,
    InvalidFieldsError: 422,
    MalformedRequestError: 400,
    PromptTooLongError: 400,
    WeightLoadError: 400,
    WeightTransferError: 409,
    RenderError: 400,
    UnknownModelError: 404,
    RequestAbortedError: 503,
    EngineUnavailableError: 503,
}


def create_app(engine: LocalEngine) -> FastAPI:
    """Return the ASGI app of a started, starting or stopped engine."""
    app = FastAPI(title="prl local engine", version="1", docs_url=None, redoc_url=None)
    app.add_exception_handler(PrlError, _error_response)

    @app.post("/v1/generate", **_described(GenerateBody, GenerateAnswer))
    async def generate(request: Request) -> Response:
        """Sample completions for exact prompt ids; log-probabilities come with every sampled id."""
        body = _parse(GenerateBody, await request.body())
        work = engine.generate(body.request(_rank(request)))
        return _json(_generate_body(await _while_connected(request, work)))

    @app.post("/v1/chat/completions", **_described(ChatBody, ChatAnswer))
    async def chat(request: Request) -> Response:
        """Render messages with the model's format, sample, and parse the answer."""
        body = _parse(ChatBody, await request.body())
        return _json(await _while_connected(request, engine.chat.complete(body, data_parallel_rank=_rank(request))))

    @app.post("/v1/chat/completions/tokens", **_described(ChatTokensBody, ChatAnswer))
    async def chat_tokens(request: Request) -> Response:
        """Sample for the exact prompt ids in `tokens`, and parse the answer as a chat; messages are not rendered."""
        body = _parse(ChatTokensBody, await request.body())
        work = engine.chat.complete(body, prompt=body.tokens, data_parallel_rank=_rank(request))
        return _json(await _while_connected(request, work))

    @app.post("/tokenize", **_described(TokenizeBody, TokenizeAnswer))
    async def tokenize(request: Request) -> Response:
        """Return the ids that a conversation is rendered to."""
        body = _parse(TokenizeBody, await request.body())
        return _json(await _while_connected(request, engine.chat.tokenize(body)))

    @app.post("/v1/weights", **_described(WeightsBody, WeightsAnswer))
    async def weights(request: Request) -> Response:
        """Load a safetensors directory once running requests have ended."""
        body = _parse(WeightsBody, await request.body())
        version = await engine.load_weights(body.directory, body.version)
        return _json({"status": "ok", "weight_version": version})

    _add_transfer_routes(app, engine)
    _add_status_routes(app, engine)
    return app


def _add_transfer_routes(app: FastAPI, engine: LocalEngine) -> None:
    @app.post("/v1/weights/offer", **_described(OfferBody, OfferAnswer))
    async def offer(request: Request) -> Response:
        """Check that tensors fit the served model, before a trainer sends them; say who would receive them."""
        body = _parse(OfferBody, await request.body())
        return _json(OfferAnswer.of(await engine.offer_weights(body.manifest())).model_dump())

    @app.post("/v1/weights/receive", **_described(TransferBody, WeightsAnswer, NOT_ARRIVED))
    async def receive(request: Request) -> Response:
        """Receive the offered tensors from a trainer's process, and load them once running requests have ended."""
        body = _parse(TransferBody, await request.body())
        version = await engine.receive_weights(body.transfer())
        return _json({"status": "ok", "weight_version": version})


def _add_status_routes(app: FastAPI, engine: LocalEngine) -> None:
    @app.get("/health", response_model=None, responses={200: {"model": HealthAnswer}, 503: ERRORS[503]})
    async def health() -> Response:
        """Say whether the model is loaded, and how busy the engine is."""
        scheduler = engine.core.scheduler
        scheduler.check_alive()
        running, waiting = scheduler.queue_sizes()
        return _json(
            {"status": "ok", "weight_version": scheduler.weight_version, "running": running, "waiting": waiting}
        )

    @app.get("/v1/models", response_model=None, responses={200: {"model": ModelsAnswer}, 503: ERRORS[503]})
    async def models() -> Response:
        """Name the served model and its context in tokens."""
        return _json({"object": "list", "data": engine.models()})


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


async def _while_connected(request: Request, work: Awaitable[Result]) -> Result:
    """Await the work; if the client disconnects first, cancel it (which frees its place in the batch)."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGoneError("the client closed the connection", where=request.url.path)
    finally:
        for pending in (task, gone):
            pending.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    """Return when the client is gone: the framework does not cancel a handler by itself."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _rank(request: Request) -> int | None:
    value = request.headers.get(RANK_HEADER)
    if value is None:
        return None
    try:
        return int(value)
    except ValueError:
        raise MalformedRequestError(
            f"{value!r} is not an integer", where=f"header {RANK_HEADER}", next_step="send 0, or leave the header out"
        ) from None


def _parse(model: type[Body], body: bytes) -> Body:
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise InvalidFieldsError.of(error, f"body of the request ({model.__name__})") from error


def _generate_body(response: GenerateResponse) -> dict[str, Any]:
    return {
        "choices": response.choices,
        "prompt_token_ids": response.prompt_token_ids,
        "prompt_logprobs": response.prompt_logprobs,
        "usage": response.usage,
        "weight_version": response.weight_version,
        "request_id": response.request_id,
    }


def _json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status_code=status, media_type="application/json")


async def _error_response(request: Request, error: Exception) -> Response:
    assert isinstance(error, PrlError)
    status = next((STATUS[kind] for kind in type(error).__mro__ if kind in STATUS), 500)
    detail: dict[str, Any] = {
        "code": error.code,
        "message": error.what,
        "where": error.where,
        "next_step": error.next_step,
    }
    if fields := getattr(error, "fields", None):
        detail["fields"] = [{"field": name, "error": problem} for name, problem in fields]
    return _json({"error": detail}, status)


def _described(
    body: type[BaseModel], answer: type[BaseModel], errors: dict[int | str, dict[str, Any]] | None = None
) -> dict[str, Any]:
    """Describe a route for the OpenAPI document: bodies are read and written as bytes, so FastAPI cannot infer them."""
    content = {"application/json": {"schema": body.model_json_schema()}}
    return {
        "response_model": None,
        "responses": {200: {"model": answer}, **ERRORS, **(errors or {})},
        "openapi_extra": {"requestBody": {"required": True, "content": content}},
    }
