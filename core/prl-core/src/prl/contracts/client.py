"""How a prompt reaches an engine: the engine's client and the client modes on top of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from prl.types import (
    GenerateRequest,
    GenerateResponse,
    Message,
    SamplingParams,
    Seats,
    ToolSpec,
    Turn,
    WeightManifest,
    WeightTransfer,
)


@runtime_checkable
class EngineClient(Protocol):
    """One engine, over HTTP or in this process. Raises the `EngineError` family, never returns half an answer."""

    async def generate(self, request: GenerateRequest) -> GenerateResponse:
        """Sample completions for exact prompt ids. Cancelling the task aborts the request in the engine."""
        ...

    async def chat(self, body: dict[str, Any]) -> dict[str, Any]:
        """`POST /v1/chat/completions` with an OpenAI body; the engine renders the prompt (MITO)."""
        ...

    async def models(self) -> list[dict[str, Any]]:
        """Return the served models; each has `id` and `max_model_len` (tokens)."""
        ...

    async def health(self) -> bool:
        """Whether the engine answers and is ready."""
        ...

    async def load_weights(self, directory: str, version: int) -> None:
        """Load a published safetensors directory between requests; later answers carry `version`."""
        ...

    async def close(self) -> None:
        """Release connections."""
        ...


@runtime_checkable
class TokenChatClient(EngineClient, Protocol):
    """An engine whose chat also takes exact prompt ids; what the client mode `token` needs."""

    async def chat_tokens(self, body: dict[str, Any]) -> dict[str, Any]:
        """`POST /v1/chat/completions/tokens`: a chat body whose prompt is `tokens`, verbatim; answers as `chat`."""
        ...

    async def tokenize(self, body: dict[str, Any]) -> list[int]:
        """`POST /tokenize`: the ids that the engine renders `messages` and `tools` to."""
        ...


@runtime_checkable
class RoutedEngine(EngineClient, Protocol):
    """Several engines behind one client."""

    def for_rollout(self) -> EngineClient:
        """Return a client for one rollout: its requests stay on one engine, where its prefix is cached, if it can."""
        ...


@runtime_checkable
class WeightReceiver(EngineClient, Protocol):
    """An engine that also takes weights straight from the trainer's process, without a directory between them."""

    async def offer_weights(self, manifest: WeightManifest) -> Seats:
        """Check that these tensors fit the served model, and say who would receive them.

        Touches nothing. Raises `EngineError` where they do not fit, or where the engine cannot receive at all.
        """
        ...

    async def receive_weights(self, transfer: WeightTransfer) -> None:
        """Receive the tensors of the last offer and load them between requests; later answers carry the version.

        Raises `WeightTransferError` where they did not arrive; the weights from before go on serving.
        """
        ...


@runtime_checkable
class WeightRouter(WeightReceiver, Protocol):
    """Several engines that receive together; one that comes later needs a directory."""

    def wants_directory(self) -> bool:
        """Whether an engine waits for a directory of the current weights, which it missed."""
        ...


@runtime_checkable
class ChatSession(Protocol):
    """One rollout's conversation with an engine.

    It keeps what was sent and sampled, and never re-renders what the model said.
    """

    messages: list[Message]

    async def turn(self, new_messages: Sequence[Message], sampling: SamplingParams) -> Turn:
        """Append messages, sample one assistant turn, append it.

        Raises `PromptTooLongError` with the state unchanged.
        """
        ...


@runtime_checkable
class ClientMode(Protocol):
    """A way to hold conversations with an engine (`renderer`, `token`, `chat`, or a plugin's own).

    The record's target is `create(engine, renderer, options) -> ClientMode`; `renderer` is None for modes that need
    none.
    """

    name: str

    def session(
        self,
        *,
        model: str,
        tools: Sequence[ToolSpec] | None = None,
        cache_salt: str | None = None,
        seed: int | None = None,
    ) -> ChatSession:
        """Begin one conversation."""
        ...
