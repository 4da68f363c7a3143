"""How prompts reach an engine: the HTTP client, the client modes and the policy that chooses one."""

from __future__ import annotations

from .http import HttpEngineClient
from .modes import ChatModeOptions, RendererModeOptions, create_chat_mode, create_renderer_mode
from .routing import resolve_client_mode

__all__ = [
    "ChatModeOptions",
    "HttpEngineClient",
    "RendererModeOptions",
    "create_chat_mode",
    "create_renderer_mode",
    "resolve_client_mode",
]
