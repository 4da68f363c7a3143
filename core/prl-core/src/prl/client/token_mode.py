"""The client mode `token`: messages and exact prompt ids in, over `/v1/chat/completions/tokens` (legacy TITO)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from prl.contracts import EngineClient, Renderer, TokenChatClient
from prl.types import ConfigError, Message, ToolSpec

from . import wire
from .chat import ChatModeSession
from .framing import Framing
from .images import has_images
from .modes import ChatModeOptions
from .rollout import rollout_client

ROUTE = "/v1/chat/completions/tokens"


class TokenModeOptions(ChatModeOptions):
    """Options of `client_mode = "token"`."""

    chat_template_kwargs: dict[str, object] = Field(
        default_factory=dict, description="Arguments of the server's chat template, sent with every request."
    )


class TokenModeSession(ChatModeSession):
    """The server renders the first turn; each later prompt is the ids so far, verbatim, and the server's own framing.

    Where the framing cannot be proven, the server renders the whole conversation; that shows as a break.
    """

    def __init__(self, engine: TokenChatClient, *, framing: Framing, **settings: Any) -> None:
        super().__init__(engine, **settings)
        self._token_engine = engine
        self._framing = framing

    async def _ask(self, conversation: Sequence[Message], body: dict[str, Any]) -> dict[str, Any]:
        """Send the exact ids where they are known, else let the server render.

        Images that a turn brings have their placeholders only once the server has prepared them.
        """
        if self._last is None or has_images(conversation[len(self.messages) :]):
            return await self._token_engine.chat(body)
        tokens = await self._framing.extend(self._last, self.messages, conversation)
        if tokens is None:
            return await self._token_engine.chat(body)
        answer = await self._token_engine.chat_tokens({**body, "tokens": tokens})
        if answer.get("prompt_token_ids") != tokens:
            raise wire.malformed("the answer is for other prompt ids than were sent", ROUTE)
        return answer


class TokenMode:
    """Holds conversations whose prompts extend what was sent and sampled, with a server that renders and parses."""

    name = "token"

    def __init__(self, engine: TokenChatClient, renderer: Renderer | None, options: TokenModeOptions) -> None:
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
    ) -> TokenModeSession:
        """Begin one conversation."""
        engine = rollout_client(self._engine)
        assert isinstance(engine, TokenChatClient)
        template = {"chat_template_kwargs": self._options.chat_template_kwargs}
        extra: Mapping[str, object] = template if self._options.chat_template_kwargs else {}
        common = {"model": model, **({"tools": list(tools)} if tools else {}), **extra}
        return TokenModeSession(
            engine,
            framing=Framing(engine, common),
            renderer=self._renderer,
            model=model,
            tools=tools,
            cache_salt=cache_salt,
            seed=seed,
            weight_version=self._options.weight_version,
            extra_body={**extra, **self._options.extra_body},
        )


def create_token_mode(
    engine: EngineClient, renderer: Renderer | None = None, options: TokenModeOptions | None = None
) -> TokenMode:
    """Return the `token` mode; raise `ConfigError` for an engine whose client knows no chat with prompt ids."""
    if not isinstance(engine, TokenChatClient):
        raise ConfigError(
            f"{type(engine).__name__} offers no {ROUTE}",
            where='client_mode = "token"',
            next_step='use client_mode = "renderer", or an engine that serves the route',
        )
    return TokenMode(engine, renderer, options or TokenModeOptions())
