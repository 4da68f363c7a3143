"""The options of `[engine] kind = "vllm"` and `prl serve --engine vllm`."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class VllmEngineOptions(BaseModel):
    """Say which model vLLM serves, where, and with what."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field(description="Model directory, or hub id.")
    served_model_name: str | None = Field(
        default=None, description="Name that requests use; default: the value of `model`."
    )
    host: str = Field(default="127.0.0.1", description="Address the HTTP server listens on.")
    port: int = Field(default=8000, ge=0, le=65535, description="Port the HTTP server listens on; 0: a free one.")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        default="auto", description="Weights' type; \"auto\" is what vLLM makes of the checkpoint's own."
    )
    max_model_len: int | None = Field(
        default=None,
        ge=2,
        description="Context in tokens (prompt + completion); default: what the model's config says.",
    )
    python: str | None = Field(
        default=None, description="Interpreter that has vLLM and this plugin; default: the one that runs prl."
    )
    logprobs: Literal["processed", "raw"] = Field(
        default="processed",
        description="Log-probabilities of the distribution that was sampled from (after temperature, penalties and"
        ' cuts), or "raw" ones at temperature 1. A trainer needs "processed" where temperature is not 1.',
    )
    tensor_parallel_size: int = Field(default=1, ge=1, description="GPUs that share each layer.")
    data_parallel_size: int = Field(default=1, ge=1, description="Copies of the model; requests name one by header.")
    gpu_memory_utilization: float | None = Field(default=None, gt=0, le=1, description="Share of a GPU's memory.")
    cpu_cache_gib: int | None = Field(default=None, ge=1, description="KV cache of the CPU build, in GiB.")
    enforce_eager: bool = Field(default=False, description="No compilation, no CUDA graphs: a quicker start.")
    seed: int = Field(default=0, description="Seed from which requests without a seed draw theirs.")
    lora: bool = Field(default=False, description="Serve LoRA adapters (POST /v1/adapters).")
    max_lora_rank: int = Field(default=16, ge=1, description="Largest rank of an adapter.")
    max_loras: int = Field(default=1, ge=1, description="Adapters that one batch may use.")
    routed_experts: bool = Field(
        default=False, description="Return which experts each token was routed to (mixture-of-experts models on GPUs)."
    )
    trust_remote_code: bool = Field(default=False, description="Run model code that comes with the checkpoint.")
    args: tuple[str, ...] = Field(
        default=(), description='More arguments for vLLM\'s server, such as ["--tool-call-parser", "hermes"].'
    )
    environment: dict[str, str] = Field(default_factory=dict, description="Environment variables of the server.")
    log: str | None = Field(
        default=None, description="File for the server's output; default: stderr in the foreground, else a new file."
    )
    start_seconds: float = Field(default=600.0, gt=0, description="How long the server may take to become ready.")
    stop_seconds: float = Field(default=20.0, gt=0, description="How long it may take to end before it is killed.")

    @property
    def name(self) -> str:
        """The model name that requests use."""
        return self.served_model_name or self.model
