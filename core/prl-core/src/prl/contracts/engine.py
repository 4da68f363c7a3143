"""An engine: something that holds a model's weights and answers generate requests."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from prl.contracts.client import EngineClient


@runtime_checkable
class Engine(Protocol):
    """A model server. The record's target is `create(options) -> Engine`; creating one loads nothing.

    The options model has at least `model` (directory or hub id), `host`, `port`, `max_model_len` and `dtype`.
    """

    async def start(self) -> None:
        """Load the model and be ready for `client()`; raise `ConfigError` or `EngineError` with the next step."""
        ...

    def client(self) -> EngineClient:
        """Return a client that reaches this engine (in process where the engine is embedded)."""
        ...

    async def stop(self) -> None:
        """Abort what runs and free the model."""
        ...

    def serve(self) -> None:
        """Run the HTTP server in the foreground until interrupted (`prl serve --engine NAME`)."""
        ...
