"""The `[teacher]` section of a run. Light: the rest of the room is imported by those who use it."""

from __future__ import annotations

import re
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, model_validator

from prl.types import ConfigError

_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
_SECRETS = re.compile(r"api[-_]?key|authorization|secret|password", re.IGNORECASE)


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", validate_default=True)


class TeacherSampling(_Section):
    """How the teacher draws. What is absent is not sent, so that its server decides."""

    max_tokens: PositiveInt | None = None
    temperature: Annotated[float, Field(ge=0)] | None = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None


class TeacherRolloutsSection(_Section):
    """Rollouts played by another model, behind any OpenAI-compatible server; our model learns to say the same."""

    base_url: str = Field(description='address up to "/chat/completions", such as "https://host/v1"')
    model: str = Field(description="name of the model on that server")
    api_key_env: str | None = Field(
        default=None, description="name of the environment variable that holds the API key; keys stand in no file"
    )
    sampling: TeacherSampling = Field(default_factory=TeacherSampling)
    extra_body: dict[str, Any] = Field(default_factory=dict, description="fields added to every request")
    keep_reasoning: bool = Field(default=True, description="train on the teacher's reasoning too, where it tells it")
    return_reasoning: bool = Field(
        default=False, description="send the reasoning of earlier turns back to the teacher, for servers that take it"
    )
    min_reward: float | None = Field(default=None, description="train only on rollouts with this reward or more")
    keep_truncated: bool = Field(default=False, description="train also on rollouts that ran out of tokens")
    request_seconds: Annotated[float, Field(gt=0)] = Field(default=600.0, description="how long one try may take")
    retries: Annotated[int, Field(ge=0)] = Field(default=6, description="tries after the first, where one may help")

    @model_validator(mode="after")
    def _no_secrets(self) -> TeacherRolloutsSection:
        """Refuse what looks like a key, without repeating it: an error message ends up in logs."""
        if self.api_key_env is not None and not _VARIABLE.fullmatch(self.api_key_env):
            raise _secret("api_key_env is no name of an environment variable", "api_key_env")
        parts = urlsplit(self.base_url)
        if parts.username or parts.password or parts.query:
            raise _secret("base_url holds credentials or a query", "base_url")
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ConfigError(
                "base_url is no address of a server",
                where="[teacher.rollouts] base_url",
                next_step='give "https://host/v1", up to what precedes "/chat/completions"',
            )
        if any(_SECRETS.fullmatch(name) for name in self.extra_body):
            raise _secret("extra_body holds a key", "extra_body")
        return self


class TeacherLogprobsSection(_Section):
    """An engine with our vocabulary whose log-probabilities of our samples a loss reads."""

    base_urls: list[str] = Field(min_length=1, description="addresses of engines that serve the teacher model")
    model: str | None = Field(default=None, description="name of the model there; absent: the one that is served")
    route: str = Field(default="/v1/generate", description='"/inference/v1/generate" reaches a vLLM without prl')
    max_concurrency: PositiveInt = Field(default=16, description="samples scored at once")
    request_seconds: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="how long one try may take; absent: as long as the engine takes"
    )
    start_seconds: Annotated[float, Field(ge=0)] = Field(default=120.0, description="how long to wait for an engine")
    absent_seconds: Annotated[float, Field(gt=0)] = Field(
        default=300.0, description="how long requests wait while no engine is ready"
    )


class TeacherSection(_Section):
    """Another model to learn from: what it says (`rollouts`), or how likely it finds what ours says (`logprobs`)."""

    rollouts: TeacherRolloutsSection | None = None
    logprobs: TeacherLogprobsSection | None = None


def _secret(what: str, key: str) -> ConfigError:
    return ConfigError(
        what,
        where=f"[teacher.rollouts] {key} (its value is not repeated here)",
        next_step='put the key into an environment variable, and its name into api_key_env, such as "TEACHER_API_KEY"',
    )
