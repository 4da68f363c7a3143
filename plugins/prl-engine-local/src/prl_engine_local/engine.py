"""The engine: loads a model, answers requests in this process, and can serve them over HTTP."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from prl.serving.errors import InvalidFieldsError
from prl.serving.retries import RetryBook
from prl.serving.schemas import WeightsBody
from prl.types import (
    EngineUnavailableError,
    GenerateRequest,
    GenerateResponse,
    Seats,
    WeightManifest,
    WeightTransfer,
)

from .chat import ChatService
from .options import LocalEngineOptions
from .requests import Limits, fingerprint
from .schemas import ChatBody, ChatTokensBody, TokenizeBody

Body = TypeVar("Body", bound=BaseModel)


def create(options: LocalEngineOptions) -> LocalEngine:
    """Return an engine that has loaded nothing yet."""
    return LocalEngine(options)


class LocalEngine:
    """One transformers model with continuous batching; `start` loads it. Methods may be awaited on any event loop."""

    def __init__(self, options: LocalEngineOptions) -> None:
        self.options = options
        self.chat = ChatService(self)
        self._core: _Core | None = None
        self._starting = threading.Lock()

    async def start(self) -> None:
        """Load the model off the event loop; raise `ConfigError` where the model or the options are wrong."""
        await asyncio.to_thread(self._start)

    def _start(self) -> None:
        with self._starting:
            if self._core is None:
                self._core = _Core(self.options)

    def client(self) -> LocalEngineClient:
        """Return a client that calls this engine directly, without HTTP."""
        return LocalEngineClient(self)

    async def stop(self) -> None:
        """Abort what runs and free the model."""
        core, self._core = self._core, None
        if core is not None:
            await asyncio.to_thread(core.scheduler.stop)

    def serve(self) -> None:
        """Run the HTTP server until interrupted; raise `ConfigError` if the model cannot be loaded."""
        from .server import serve

        serve(self)

    @property
    def is_ready(self) -> bool:
        """Whether the model is loaded."""
        return self._core is not None

    @property
    def core(self) -> _Core:
        """The loaded half; raise `EngineUnavailableError` before `start` has finished and after `stop`."""
        core = self._core
        if core is None:
            raise EngineUnavailableError(
                "the engine is not ready: no model is loaded",
                where=f"local engine for {self.options.model!r}",
                next_step="wait until GET /health answers 200 (in process: await engine.start())",
            )
        return core

    async def generate(self, request: GenerateRequest) -> GenerateResponse:
        """Sample completions for exact prompt ids; raise the `EngineError` family. Cancelling aborts the request."""
        core = self.core
        core.limits.check(request)
        return await core.book.answer(request.request_id, lambda: fingerprint(request), lambda: core.submit(request))

    async def load_weights(self, directory: str, version: int) -> int:
        """Check a safetensors directory, then load it once running requests have ended; return the version.

        Requests that arrive meanwhile wait. Raise `WeightLoadError` if it does not fit; the old weights keep serving.
        """
        core = self.core
        try:
            WeightsBody(directory=directory, version=version)
        except ValidationError as error:
            raise InvalidFieldsError.of(error, "load_weights") from error
        return await core.load_weights(directory, version)

    async def offer_weights(self, manifest: WeightManifest) -> Seats:
        """Check that these tensors fit, and remember them for `receive_weights`; raise `WeightLoadError` otherwise."""
        return await asyncio.to_thread(self.core.intake.offer, manifest)

    async def receive_weights(self, transfer: WeightTransfer) -> int:
        """Receive the offered tensors while requests run, then load them once these have ended; return the version.

        Raise `WeightTransferError` where they do not arrive, `WeightLoadError` where their values are refused; the old
        weights keep serving.
        """
        return await self.core.receive_weights(transfer)

    def models(self) -> list[dict[str, Any]]:
        """Return the one served model, in the shape of `GET /v1/models`."""
        core = self.core
        return [
            {
                "id": core.limits.name,
                "object": "model",
                "owned_by": "prl",
                "max_model_len": core.limits.context,
                "weight_version": core.scheduler.weight_version,
            }
        ]


class _Core:
    """What exists once the model is loaded."""

    def __init__(self, options: LocalEngineOptions) -> None:
        import torch

        from .intake import Intake
        from .loading import context_length, load_model
        from .runner import ModelRunner
        from .scheduler import Scheduler

        if options.threads is not None:
            torch.set_num_threads(options.threads)
        self.model = load_model(options)
        context = context_length(self.model, options.max_model_len)
        runner = ModelRunner(self.model, options.prefill_tokens)
        runner.prove()
        self.limits = Limits(name=options.name, vocabulary=runner.vocabulary, context=context)
        self.scheduler = Scheduler(runner, options, context)
        self.book: RetryBook[GenerateResponse] = RetryBook(options.remembered_tokens, _total_tokens)
        self._order = itertools.count()
        self._seeds = random.Random(options.seed)
        self._loading = threading.Lock()
        self.intake = Intake(self.model)

    def submit(self, request: GenerateRequest) -> Future[GenerateResponse]:
        from .sequence import Job

        seed = request.sampling.seed
        job = Job.create(
            request,
            order=next(self._order),
            seed=self._seeds.getrandbits(63) if seed is None else seed,
            context=self.limits.context,
        )
        self.scheduler.submit(job)
        return job.future

    async def load_weights(self, directory: str, version: int) -> int:
        from .weights import read_weights

        return await asyncio.to_thread(self._load, lambda: read_weights(self.model, directory), version)

    async def receive_weights(self, transfer: WeightTransfer) -> int:
        return await asyncio.to_thread(self._load, lambda: self.intake.receive(transfer), transfer.version)

    def _load(self, read: Callable[[], dict[str, Any]], version: int) -> int:
        from .weights import apply_weights

        with self._loading:  # two loads at once finish in the order they began
            weights = read()
            return self.scheduler.load(lambda: apply_weights(self.model, weights), version).result()


def _total_tokens(response: GenerateResponse) -> int:
    return response.usage["total_tokens"]


def _checked(model: type[Body], body: dict[str, Any]) -> Body:
    try:
        return model.model_validate(body)
    except ValidationError as error:
        raise InvalidFieldsError.of(error, f"chat body ({model.__name__})") from error


class LocalEngineClient:
    """Reaches an engine in this process; the same contract as a client over HTTP."""

    def __init__(self, engine: LocalEngine) -> None:
        self._engine = engine

    async def generate(self, request: GenerateRequest) -> GenerateResponse:
        """Sample completions; cancelling the task aborts the request."""
        return await self._engine.generate(request)

    async def chat(self, body: dict[str, Any]) -> dict[str, Any]:
        """Answer an OpenAI chat body; the engine renders the prompt."""
        return await self._engine.chat.complete(_checked(ChatBody, body))

    async def chat_tokens(self, body: dict[str, Any]) -> dict[str, Any]:
        """Answer a chat body for the exact prompt ids in its `tokens`."""
        parsed = _checked(ChatTokensBody, body)
        return await self._engine.chat.complete(parsed, prompt=parsed.tokens)

    async def tokenize(self, body: dict[str, Any]) -> list[int]:
        """Return the ids that a conversation is rendered to."""
        tokens: list[int] = (await self._engine.chat.tokenize(_checked(TokenizeBody, body)))["tokens"]
        return tokens

    async def models(self) -> list[dict[str, Any]]:
        """Return the served model with its context."""
        return self._engine.models()

    async def health(self) -> bool:
        """Whether the model is loaded."""
        return self._engine.is_ready

    async def load_weights(self, directory: str, version: int) -> None:
        """Load a published directory between requests."""
        await self._engine.load_weights(directory, version)

    async def offer_weights(self, manifest: WeightManifest) -> Seats:
        """Check that these tensors fit the served model; it has one seat."""
        return await self._engine.offer_weights(manifest)

    async def receive_weights(self, transfer: WeightTransfer) -> None:
        """Receive the offered tensors, and load them between requests."""
        await self._engine.receive_weights(transfer)

    async def close(self) -> None:
        """Release nothing: the engine belongs to whoever started it."""
