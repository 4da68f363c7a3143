"""What this distribution offers to prl. Light: nothing here or behind the options imports vLLM or torch."""

from __future__ import annotations

from prl.plugin import EngineEntry, hookimpl


@hookimpl
def prl_engines() -> list[EngineEntry]:
    """Offer the vLLM engine.

    It needs vLLM in the interpreter that runs the server, which the option `python` may set apart from this one; so the
    engine looks for it there when it starts, and `needs` is empty.
    """
    return [
        EngineEntry(
            name="vllm",
            target="prl_engine_vllm.engine:create",
            options="prl_engine_vllm.options:VllmEngineOptions",
            summary="vLLM as a child process: /v1/generate, chat over tokens, weights and LoRA adapters",
            install='pip install "prl-engine-vllm[vllm]"',
        )
    ]
