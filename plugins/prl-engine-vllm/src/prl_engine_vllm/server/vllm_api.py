"""Every name that the front end takes from vLLM, in one place, imported only inside vLLM's server."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, Protocol


class Vllm(Protocol):
    """What the routes need of vLLM besides its engine client; tests give their own."""

    rejects: tuple[type[Exception], ...]
    dies: tuple[type[Exception], ...]
    fails: tuple[type[Exception], ...]

    def sampling(self, fields: Mapping[str, Any]) -> Any:
        """Return vLLM's sampling parameters."""
        ...

    def prompt(self, ids: list[int], cache_salt: str | None) -> Any:
        """Return the engine input of exact prompt ids."""
        ...

    def trace(self, headers: Mapping[str, str]) -> Mapping[str, str] | None:
        """Return the trace context among the headers."""
        ...


class InstalledVllm:
    """The vLLM of this process. `rejects` is what it raises for a request, `fails` for a fault of its own,
    `dies` when its engine is gone.
    """

    def __init__(self) -> None:
        self._params = importlib.import_module("vllm.sampling_params")
        self._inputs = importlib.import_module("vllm.inputs.engine")
        self._tracing = importlib.import_module("vllm.tracing")
        rejected = importlib.import_module("vllm.exceptions").VLLMClientError
        self.rejects: tuple[type[Exception], ...] = (rejected, ValueError, TypeError, OverflowError)
        exceptions = importlib.import_module("vllm.v1.engine.exceptions")
        self.dies: tuple[type[Exception], ...] = (exceptions.EngineDeadError,)
        self.fails: tuple[type[Exception], ...] = (exceptions.EngineGenerateError,)

    def sampling(self, fields: Mapping[str, Any]) -> Any:
        """Return vLLM's sampling parameters; one final output, no text."""
        return self._params.SamplingParams(
            **fields,
            detokenize=False,
            skip_special_tokens=False,
            output_kind=self._params.RequestOutputKind.FINAL_ONLY,
        )

    def prompt(self, ids: list[int], cache_salt: str | None) -> Any:
        """Return the engine input of exact prompt ids."""
        return self._inputs.tokens_input(ids, cache_salt=cache_salt)

    def trace(self, headers: Mapping[str, str]) -> Mapping[str, str] | None:
        """Return the trace context among the headers, None where there is none."""
        if not self._tracing.contains_trace_headers(headers):
            return None
        found: Mapping[str, str] = self._tracing.extract_trace_headers(headers)
        return found


def chat_request_class() -> Any:
    """Return vLLM's model of a chat body."""
    return importlib.import_module("vllm.entrypoints.openai.chat_completion.protocol").ChatCompletionRequest


def adapter_request(name: str, directory: str) -> Any:
    """Return vLLM's request to load an adapter, in the place of an older one of that name."""
    protocol = importlib.import_module("vllm.entrypoints.serve.lora.protocol")
    return protocol.LoadLoRAAdapterRequest(lora_name=name, lora_path=directory, load_inplace=True)


def unload_request(name: str) -> Any:
    """Return vLLM's request to forget an adapter."""
    protocol = importlib.import_module("vllm.entrypoints.serve.lora.protocol")
    return protocol.UnloadLoRAAdapterRequest(lora_name=name)


def error_message(value: Any) -> str | None:
    """Return the message of vLLM's error object, None for anything else."""
    error = getattr(value, "error", None)
    return str(error.message) if error is not None else None
