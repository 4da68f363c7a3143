"""vLLM answers as every engine of prl must: the suite that the embedded engine passes too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from engines.suite import CHAT, CHAT_TOKENS, EngineSuite, Served

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="session")
def served(qwen_server: Any, qwen_models: tuple[Path, Path]) -> Served:
    return Served(
        url=qwen_server.url,
        model="tiny",
        vocabulary=151_936,
        context=512,
        weights=str(qwen_models[0]),
        other_weights=str(qwen_models[1]),
        # /tokenize is vLLM's own route, with vLLM's own errors
        examples=400,
        routes=("/v1/generate", CHAT, CHAT_TOKENS, "/v1/weights"),
    )


class TestVllmEngine(EngineSuite):
    """The engine of `prl-engine-vllm`, over HTTP."""
