"""What this distribution offers. Light: the engine and torch are imported on first use."""

from __future__ import annotations

from prl.plugin import EngineEntry, hookimpl


@hookimpl
def prl_engines() -> list[EngineEntry]:
    """Offer the embedded engine."""
    return [
        EngineEntry(
            name="local",
            target="prl_engine_local.engine:create",
            options="prl_engine_local.options:LocalEngineOptions",
            summary="transformers on CPU or one GPU, continuous batching, /v1/generate; in process or as a server",
            needs=("torch", "transformers", "safetensors", "fastapi", "uvicorn"),
            install="pip install prl-engine-local",
        )
    ]
