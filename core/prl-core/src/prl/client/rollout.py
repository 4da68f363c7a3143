"""One rollout's engine client."""

from __future__ import annotations

from prl.contracts import EngineClient, RoutedEngine


def rollout_client(engine: EngineClient) -> EngineClient:
    """Return the client that one rollout uses: its own of a pool, so that it stays on one engine; else the engine's."""
    return engine.for_rollout() if isinstance(engine, RoutedEngine) else engine
