"""Bodies and answers of the routes that every engine serves. The same models check requests made in a process."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, FailFast, Field, model_validator

from prl.types import GenerateRequest, SamplingParams

INT64 = 2**63
Ids = Annotated[list[int], FailFast()]  # one wrong id is told, not a hundred thousand
Version = Annotated[
    int, Field(description="Of the weights, as published; -1 for those that an engine was started with.")
]


class Body(BaseModel):
    """A body whose unknown fields are refused, and whose integers are integers."""

    model_config = ConfigDict(extra="forbid", strict=True)


class SamplingFields(Body):
    """How tokens are drawn."""

    max_tokens: int | None = Field(default=None, ge=1, description="Default: what is left of the context.")
    min_tokens: int = Field(default=0, ge=0, description="Stop ids cannot be drawn before so many tokens.")
    temperature: float = Field(
        default=1.0, ge=0, le=1e4, allow_inf_nan=False, description="0 takes the likeliest token."
    )
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=-1, ge=-1, lt=INT64, description="-1 and 0 switch it off.")
    n: int = Field(default=1, ge=1, le=1024, description="Completions of the prompt.")
    seed: int | None = Field(
        default=None, ge=-INT64, lt=INT64, description="Same seed, same prompt, same weights: same tokens."
    )
    stop_token_ids: Ids = Field(default_factory=list, description="Exactly these ids end a completion.")

    @model_validator(mode="after")
    def _check_bounds(self) -> SamplingFields:
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens = {self.min_tokens} is more than max_tokens = {self.max_tokens}")
        if 0 < self.temperature < 1e-5:
            raise ValueError(f"temperature = {self.temperature} is too small: use 0 for the likeliest token")
        return self

    def sampling(self) -> SamplingParams:
        """Return the fields as the exchange type."""
        return SamplingParams(
            max_tokens=self.max_tokens,
            min_tokens=self.min_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            n=self.n,
            seed=self.seed,
            stop_token_ids=tuple(self.stop_token_ids),
        )


class GenerateBody(SamplingFields):
    """`POST /v1/generate`."""

    model: str
    prompt_token_ids: Ids = Field(description="The prompt, as the exact ids the model is to see.")
    prompt_logprobs: bool = Field(
        default=False, description="Also return the log-probability of every prompt id (T = 1)."
    )
    priority: int = Field(default=0, ge=-INT64, lt=INT64, description="Lower runs earlier.")
    cache_salt: str | None = Field(default=None, description="Prefixes are shared below one salt only.")
    request_id: str | None = Field(default=None, description="Idempotency key: a retry gets the same answer.")

    def request(self, data_parallel_rank: int | None) -> GenerateRequest:
        """Return the body as the exchange type."""
        return GenerateRequest(
            model=self.model,
            prompt_token_ids=self.prompt_token_ids,
            sampling=self.sampling(),
            prompt_logprobs=self.prompt_logprobs,
            priority=self.priority,
            cache_salt=self.cache_salt,
            request_id=self.request_id,
            data_parallel_rank=data_parallel_rank,
        )


class WeightsBody(Body):
    """`POST /v1/weights`."""

    directory: str = Field(min_length=1, description="Safetensors directory, readable by this server and its workers.")
    version: int = Field(ge=0, lt=INT64, description="What later answers carry as weight_version.")


class Choice(BaseModel):
    """One completion; `logprobs[i]` belongs to `token_ids[i]`.

    `routed_experts` has one row per token but the last, [tokens - 1, layers, experts per token], prompt included.
    """

    token_ids: list[int]
    logprobs: list[float]
    finish_reason: str
    routed_experts: list[list[list[int]]] | None = None


class GenerateAnswer(BaseModel):
    """Answer of `POST /v1/generate`; `prompt_logprobs[0]` is null."""

    choices: list[Choice]
    prompt_token_ids: list[int]
    prompt_logprobs: list[float | None] | None
    usage: dict[str, int]
    weight_version: Version
    request_id: str | None


class WeightsAnswer(BaseModel):
    """Answer of `POST /v1/weights`."""

    status: str
    weight_version: int


class HealthAnswer(BaseModel):
    """Answer of `GET /health`; `running` and `waiting` count requests."""

    status: str
    weight_version: Version
    running: int
    waiting: int


class ModelCard(BaseModel):
    """One served model."""

    id: str
    object: str
    owned_by: str
    max_model_len: int
    weight_version: Version


class ModelsAnswer(BaseModel):
    """Answer of `GET /v1/models`."""

    object: str
    data: list[ModelCard]


class FieldError(BaseModel):
    """One wrong field of a body."""

    field: str
    error: str


class ErrorDetail(BaseModel):
    """What failed, where the cause is, and the next step; `code` is for machines."""

    code: str
    message: str
    where: str
    next_step: str
    fields: list[FieldError] | None = None


class ErrorAnswer(BaseModel):
    """Body of every answer that is not 200."""

    error: ErrorDetail
