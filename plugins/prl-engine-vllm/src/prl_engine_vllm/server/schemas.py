"""Bodies and answers that only vLLM has, besides those of every engine."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from prl.serving import schemas as common
from prl.serving.schemas import INT64, Body, Version


class GenerateBody(common.GenerateBody):
    """`POST /v1/generate`, with the samplers that vLLM has besides."""

    min_p: float = Field(default=0.0, ge=0, le=1, description="Least probability, relative to the likeliest token's.")
    presence_penalty: float = Field(default=0.0, ge=-2, le=2)
    frequency_penalty: float = Field(default=0.0, ge=-2, le=2)
    repetition_penalty: float = Field(default=1.0, gt=0, le=1e4, allow_inf_nan=False)
    cache_salt: str | None = Field(default=None, min_length=1, description="Prefixes are shared below one salt only.")


class AdapterBody(Body):
    """`POST /v1/adapters`."""

    name: str = Field(min_length=1, description="Model name by which requests choose the adapter.")
    directory: str = Field(min_length=1, description="adapter_config.json and adapter_model.safetensors.")
    version: int | None = Field(
        default=None, ge=0, lt=INT64, description="What later answers carry as weight_version; default: as before."
    )


class ChatAnswer(BaseModel):
    """Answer of the chat routes: vLLM's own, plus the version of the weights."""

    model_config = ConfigDict(extra="allow")

    id: str
    object: str
    created: int
    model: str
    choices: list[dict[str, Any]]
    usage: dict[str, Any]
    weight_version: Version
    prompt_token_ids: list[int] | None = None


class AdapterAnswer(BaseModel):
    """Answer of `POST /v1/adapters` and `DELETE /v1/adapters/{name}`."""

    status: str
    name: str
    weight_version: Version


class ModelCard(common.ModelCard):
    """One served model or adapter."""

    parent: str | None = None


class ModelsAnswer(BaseModel):
    """Answer of `GET /v1/models`."""

    object: str
    data: list[ModelCard]


class InfoAnswer(BaseModel):
    """Answer of `GET /v1/engine`: what this server is, for whoever started it."""

    engine: str
    plugin_version: str
    vllm_version: str
    logprobs_mode: str
    lora: bool
    model: str
    instance: str | None
