"""The options of `[engine] kind = "local"` and `prl serve --engine local`."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class LocalEngineOptions(BaseModel):
    """Say which model is served, where, and how much of it runs at once."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field(description="Model directory, or hub id.")
    served_model_name: str | None = Field(
        default=None, description="Name that requests use; default: the value of `model`."
    )
    host: str = Field(default="127.0.0.1", description="Address the HTTP server listens on.")
    port: int = Field(default=8000, ge=1, le=65535, description="Port the HTTP server listens on.")
    device: str = Field(default="auto", description='"auto" (a GPU if there is one), "cpu", "cuda" or "cuda:0".')
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        default="auto", description="Weights' type; \"auto\" is float32 on CPU and the checkpoint's own on GPU."
    )
    attention: Literal["sdpa", "eager"] = Field(default="sdpa", description="transformers attention implementation.")
    max_model_len: int | None = Field(
        default=None,
        ge=2,
        description="Context in tokens (prompt + completion); default: what the model's config says.",
    )
    max_batch_size: int = Field(default=128, ge=1, description="Sequences decoded together.")
    max_batch_tokens: int = Field(
        default=262_144, ge=1, description="KV cache in tokens: sequences decoded together times the longest of them."
    )
    prefill_tokens: int = Field(default=8192, ge=1, description="Prompt tokens (padding included) of one forward pass.")
    admission_window_ms: float = Field(
        default=2.0, ge=0, description="How long an idle engine waits for more requests before it starts a batch."
    )
    threads: int | None = Field(
        default=None, ge=1, description="torch threads of the whole process; default: leave as it is."
    )
    seed: int | None = Field(default=None, description="Seed from which requests without a seed draw theirs.")
    chat_template: str = Field(
        default="auto", description='Renderer of /v1/chat/completions; "auto" goes by the model.'
    )
    chat_template_options: dict[str, object] = Field(default_factory=dict, description="Options of that renderer.")
    use_tokenizer_template: bool = Field(
        default=False,
        description="Render chats with the tokenizer's own template instead; answers are then plain text.",
    )
    remembered_tokens: int = Field(
        default=2_000_000, ge=0, description="Tokens of finished answers kept for a retry with the same request id."
    )
    trust_remote_code: bool = Field(default=False, description="Run model code that comes with the checkpoint.")

    @property
    def name(self) -> str:
        """The model name that requests use."""
        return self.served_model_name or self.model
