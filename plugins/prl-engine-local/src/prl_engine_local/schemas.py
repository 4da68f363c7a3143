"""Bodies and answers of the routes that only this engine has: chats, which it renders and parses itself."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field, model_validator

from prl.serving.schemas import INT64, Body, SamplingFields, Version


class ChatBody(SamplingFields):
    """`POST /v1/chat/completions`; a field that is not known here is refused, not ignored."""

    model: str
    messages: list[dict[str, Any]] = Field(min_length=1)
    tools: list[dict[str, Any]] | None = None
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool = False
    return_token_ids: bool = Field(
        default=False, description="Also return prompt_token_ids, and token_ids of each choice."
    )
    priority: int = Field(default=0, ge=-INT64, lt=INT64)
    cache_salt: str | None = None
    request_id: str | None = None
    user: str | None = Field(default=None, description="Accepted, without effect.")
    metadata: dict[str, Any] | None = Field(default=None, description="Accepted, without effect.")

    @model_validator(mode="after")
    def _check_limits(self) -> ChatBody:
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise ValueError("give max_completion_tokens or max_tokens, not both")
        return self


class ChatTokensBody(ChatBody):
    """`POST /v1/chat/completions/tokens`: a chat body whose prompt is given as exact ids; messages are not rendered."""

    tokens: list[int] = Field(min_length=1, description="The prompt, as the exact ids the model is to see.")


class TokenizeBody(Body):
    """`POST /tokenize`: what a conversation is rendered to."""

    model: str
    messages: list[dict[str, Any]] = Field(min_length=1)
    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True


class TokenizeAnswer(BaseModel):
    """Answer of `POST /tokenize`."""

    count: int
    max_model_len: int
    tokens: list[int]


class ChatChoice(BaseModel):
    """One assistant message; ids and log-probabilities come where they were asked for."""

    index: int
    message: dict[str, Any]
    finish_reason: str
    logprobs: dict[str, Any] | None
    token_ids: list[int] | None = None


class ChatAnswer(BaseModel):
    """Answer of `POST /v1/chat/completions`: OpenAI's, plus what a trainer needs."""

    id: str
    object: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: dict[str, int]
    weight_version: Version
    prompt_token_ids: list[int] | None = None
