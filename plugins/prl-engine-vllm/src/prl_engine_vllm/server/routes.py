"""The routes of prl on vLLM's app; those that vLLM has too are replaced, and say more."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response

from prl.serving.http import (
    CHAT_BODY,
    ERRORS,
    SMALL_BODY,
    TypedErrorRoute,
    data_parallel_rank,
    described,
    json_response,
    read_body,
    read_bytes,
    while_connected,
)
from prl.serving.routes import add_weight_routes
from prl.serving.schemas import GenerateAnswer, HealthAnswer
from prl.types import EngineUnavailableError

from .adapters import AdapterService
from .chat import CHAT, TOKENS, ChatService
from .generate import GenerateService
from .limits import Limits
from .schemas import (
    AdapterAnswer,
    AdapterBody,
    ChatAnswer,
    GenerateBody,
    InfoAnswer,
    ModelsAnswer,
)
from .state import WeightState
from .weights import WeightService

STARTED = int(time.time())


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What the routes call; it lies in the app's state."""

    engine: Any
    models: Any
    limits: Limits
    state: WeightState
    generate: GenerateService
    chat: ChatService
    weights: WeightService
    adapters: AdapterService
    info: InfoAnswer


def attach(app: FastAPI, chat_schema: dict[str, Any]) -> None:
    """Add the routes; `chat_schema` is the JSON schema of vLLM's own chat body."""
    router = APIRouter(route_class=TypedErrorRoute)
    _add_sampling(router)
    _add_chat(router, chat_schema)
    add_weight_routes(router, lambda request: services(request).weights)
    _add_adapters(router)
    _add_status(router)
    # One by one, not by include_router: vLLM recognises a replacement among the app's own routes.
    app.router.routes.extend(router.routes)


def services(request: Request) -> Services:
    """Return the services of this app; raise `EngineUnavailableError` before vLLM has set them up."""
    found: Services | None = getattr(request.app.state, "prl", None)
    if found is None:
        raise EngineUnavailableError(
            "the engine is not ready", where=request.url.path, next_step="wait until GET /health answers 200"
        )
    if found.engine.errored:
        raise EngineUnavailableError(
            "vLLM's engine has died", where=request.url.path, next_step="read its log, and start the server again"
        )
    return found


def _add_sampling(router: APIRouter) -> None:
    @router.post("/v1/generate", **described(GenerateBody, GenerateAnswer))
    async def generate(request: Request) -> Response:
        """Sample completions for exact prompt ids; log-probabilities come with every sampled id."""
        prl = services(request)
        body = await read_body(request, GenerateBody, prl.limits.body_bytes)
        rank = data_parallel_rank(request, prl.limits)
        work = prl.generate.answer(body, rank, request.headers)
        return json_response(await while_connected(request, work))


def _add_chat(router: APIRouter, schema: dict[str, Any]) -> None:
    @router.post(CHAT, **described(schema, ChatAnswer))
    async def chat(request: Request) -> Response:
        """Render messages with the model's template, sample, and parse the answer."""
        prl = services(request)
        data_parallel_rank(request, prl.limits)
        return await prl.chat.answer(request, await read_bytes(request, CHAT_BODY), tokens=False)

    @router.post(TOKENS, **described(_with_tokens(schema), ChatAnswer))
    async def chat_tokens(request: Request) -> Response:
        """Answer a chat whose prompt is given as exact ids (`tokens`); the ids sampled come back with it."""
        prl = services(request)
        data_parallel_rank(request, prl.limits)
        return await prl.chat.answer(request, await read_bytes(request, CHAT_BODY), tokens=True)


def _add_adapters(router: APIRouter) -> None:
    @router.post("/v1/adapters", **described(AdapterBody, AdapterAnswer))
    async def load_adapter(request: Request) -> Response:
        """Load a LoRA adapter, or replace one, once running requests have ended."""
        body = await read_body(request, AdapterBody, SMALL_BODY)
        version = await services(request).adapters.load(body)
        return json_response({"status": "ok", "name": body.name, "weight_version": version})

    @router.delete("/v1/adapters/{name}", **described(None, AdapterAnswer))
    async def remove_adapter(request: Request, name: str) -> Response:
        """Forget a LoRA adapter."""
        version = await services(request).adapters.remove(name)
        return json_response({"status": "ok", "name": name, "weight_version": version})


def _add_status(router: APIRouter) -> None:
    @router.get("/health", response_model=None, responses={200: {"model": HealthAnswer}, 503: ERRORS[503]})
    async def health(request: Request) -> Response:
        """Say whether the engine lives and its weights are known."""
        prl = services(request)
        version = await prl.weights.version()
        running = prl.generate.running
        return json_response({"status": "ok", "weight_version": version, "running": running, "waiting": 0})

    @router.get("/v1/models", response_model=None, responses={200: {"model": ModelsAnswer}, 503: ERRORS[503]})
    async def models(request: Request) -> Response:
        """Name the served model and its adapters, with the context in tokens."""
        prl = services(request)
        version = await prl.weights.version()
        return json_response({"object": "list", "data": _cards(prl, version)})

    @router.get("/v1/engine", response_model=None, responses={200: {"model": InfoAnswer}})
    async def info(request: Request) -> Response:
        """Say what this server is; whoever started it knows by this that the plugin is in place."""
        return json_response(services(request).info.model_dump())


def _cards(prl: Services, version: int) -> list[dict[str, Any]]:
    bases = [base.name for base in prl.models.base_model_paths]
    common = {"object": "model", "created": STARTED, "owned_by": "prl", "max_model_len": prl.limits.context}
    cards = [{"id": name, "parent": None} for name in bases]
    cards += [{"id": name, "parent": bases[0]} for name in prl.models.lora_requests]
    return [{**card, **common, "weight_version": version} for card in cards]


def _with_tokens(schema: dict[str, Any]) -> dict[str, Any]:
    ids = {"type": "array", "items": {"type": "integer"}, "minItems": 1, "description": "The prompt's exact ids."}
    properties = {**schema.get("properties", {}), "tokens": ids}
    return {**schema, "properties": properties, "required": [*schema.get("required", ()), "tokens"]}
