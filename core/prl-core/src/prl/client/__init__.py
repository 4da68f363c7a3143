"""How prompts reach an engine: the HTTP client, pools of engines, the client modes and the policy that chooses one."""

from __future__ import annotations

from .http import HttpEngineClient
from .modes import ChatModeOptions, RendererModeOptions, create_chat_mode, create_renderer_mode
from .pool import DnsDiscovery, EnginePool, FixedAddresses, PoolSettings
from .rollout import rollout_client
from .routes import PrlRoute, VllmRoute, find_route
from .routing import resolve_client_mode
from .token_mode import TokenModeOptions, create_token_mode

__all__ = [
    "ChatModeOptions",
    "DnsDiscovery",
    "EnginePool",
    "FixedAddresses",
    "HttpEngineClient",
    "PoolSettings",
    "PrlRoute",
    "RendererModeOptions",
    "TokenModeOptions",
    "VllmRoute",
    "create_chat_mode",
    "create_renderer_mode",
    "create_token_mode",
    "find_route",
    "resolve_client_mode",
    "rollout_client",
]
