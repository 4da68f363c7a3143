"""An OpenAI-compatible address in front of an engine, for agents that know nothing of tokens."""

from __future__ import annotations

from .gateway import Gateway
from .session import GatewaySession
from .settings import GatewaySettings

__all__ = ["Gateway", "GatewaySession", "GatewaySettings"]
