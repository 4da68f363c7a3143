"""The client modes `renderer` (tokens in, tokens out) and `chat` (messages in, tokens out)."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, Field

from prl.contracts import EngineClient, Renderer
from prl.types import ConfigError, ToolSpec

from .chat import ChatModeSession
from .rollout import rollout_client
from .session import RendererSession


class RendererModeOptions(BaseModel):
    """Options of `client_mode = "renderer"`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    thread_above: int = Field(
        default=20_000,
        ge=0,
        description="Characters of a turn from which rendering and parsing leave the event loop for a thread.",
    )
    priority: int = Field(default=0, description="Priority of every request; lower runs earlier.")


class ChatModeOptions(BaseModel):
    """Options of `client_mode = "chat"`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    weight_version: int | None = Field(
        default=None,
        ge=0,
        description="Version to record where the server names none (a server whose weights never change).",
    )
    extra_body: dict[str, object] = Field(default_factory=dict, description="Fields added to every request.")


class RendererMode:
    """Renders here, sends ids over `/v1/generate`, and bridges from turn to turn."""

    name = "renderer"

    def __init__(self, engine: EngineClient, renderer: Renderer, options: RendererModeOptions) -> None:
        self._engine = engine
        self._renderer = renderer
        self._options = options

    def session(
        self,
        *,
        model: str,
        tools: Sequence[ToolSpec] | None = None,
        cache_salt: str | None = None,
        seed: int | None = None,
    ) -> RendererSession:
        """Begin one conversation; its cache salt stays the same to the end."""
        return RendererSession(
            rollout_client(self._engine),
            self._renderer,
            model=model,
            tools=tools,
            cache_salt=cache_salt,
            seed=seed,
            priority=self._options.priority,
            thread_above=self._options.thread_above,
        )


class ChatMode:
    """Sends messages over `/v1/chat/completions`; the server renders, and says which ids it used."""

    name = "chat"

    def __init__(self, engine: EngineClient, renderer: Renderer | None, options: ChatModeOptions) -> None:
        self._engine = engine
        self._renderer = renderer
        self._options = options

    def session(
        self,
        *,
        model: str,
        tools: Sequence[ToolSpec] | None = None,
        cache_salt: str | None = None,
        seed: int | None = None,
    ) -> ChatModeSession:
        """Begin one conversation."""
        return ChatModeSession(
            rollout_client(self._engine),
            self._renderer,
            model=model,
            tools=tools,
            cache_salt=cache_salt,
            seed=seed,
            weight_version=self._options.weight_version,
            extra_body=self._options.extra_body,
        )


def create_renderer_mode(
    engine: EngineClient, renderer: Renderer | None, options: RendererModeOptions | None = None
) -> RendererMode:
    """Return the `renderer` mode; raise `ConfigError` without a renderer."""
    if renderer is None:
        raise ConfigError(
            "the renderer mode needs a renderer",
            where='client_mode = "renderer"',
            next_step='set renderer = "auto" or a name from `prl plugins list`, or use client_mode = "chat"',
        )
    return RendererMode(engine, renderer, options or RendererModeOptions())


def create_chat_mode(
    engine: EngineClient, renderer: Renderer | None = None, options: ChatModeOptions | None = None
) -> ChatMode:
    """Return the `chat` mode; with a renderer, answers are parsed from their ids as in the `renderer` mode."""
    return ChatMode(engine, renderer, options or ChatModeOptions())
