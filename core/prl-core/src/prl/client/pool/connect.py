"""The clients that a pool reaches its engines with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from prl.client.http import HEALTH_SECONDS, HttpEngineClient
from prl.client.routes import GenerateRoute
from prl.contracts import TokenChatClient


class Connect(Protocol):
    """Makes the client of one engine, or of one data-parallel rank of it."""

    def __call__(self, base_url: str, rank: int | None) -> TokenChatClient:
        """Return a client; connect nothing yet."""
        ...


class HttpConnect:
    """Connects over HTTP. A client does not try again by itself: the pool does, on another engine if it can."""

    def __init__(
        self,
        *,
        timeout: float | None = None,
        headers: Mapping[str, str] | None = None,
        route: GenerateRoute | None = None,
        ask_again: float | None = 60.0,
        health_timeout: float = HEALTH_SECONDS,
    ) -> None:
        self._timeout = timeout
        self._headers = headers
        self._route = route
        self._ask_again = ask_again
        self._health_timeout = health_timeout

    def __call__(self, base_url: str, rank: int | None) -> TokenChatClient:
        """Return a client of `base_url`, whose requests carry the rank."""
        return HttpEngineClient(
            base_url,
            timeout=self._timeout,
            retries=0,
            headers=self._headers,
            data_parallel_rank=rank,
            route=self._route,
            ask_again=self._ask_again,
            health_timeout=self._health_timeout,
        )
