"""The tokens-in, tokens-out exchange: what `POST /v1/generate` takes and returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

UNPUBLISHED = -1
"""The version of weights that nobody published: an engine's own, until it is given others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are drawn. `max_tokens=None` means what is left of the context, never a fixed default."""

    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    n: int = 1
    seed: int | None = None
    stop_token_ids: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class EncodedIds:
    """A list of ids, which nobody changes any more, and its compact JSON."""

    ids: Sequence[int]
    json: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """One prompt, as exact token ids.

    `encoded` is the prompt as JSON, from a caller that keeps it: a growing prompt is then not encoded anew each turn.
    `prompt_logprobs` asks for the log-probability of every prompt token. `request_id` is the idempotency key.
    `cache_salt` keeps a prefix cache from serving keys computed by other weights.
    """

    model: str
    prompt_token_ids: Sequence[int]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    prompt_logprobs: bool = False
    priority: int = 0
    cache_salt: str | None = None
    request_id: str | None = None
    data_parallel_rank: int | None = None
    encoded: EncodedIds | None = field(default=None, compare=False, repr=False)

    @property
    def prompt_json(self) -> bytes | None:
        """The kept JSON of exactly these ids; None where there is none, or it is of another list."""
        kept = self.encoded
        return kept.json if kept is not None and kept.ids is self.prompt_token_ids else None


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateChoice:
    """One sampled completion; `logprobs[i]` is the log-probability of `token_ids[i]` under the sampling distribution.

    `finish_reason` is "stop" (the stop token is the last id), "length" or "abort".
    """

    token_ids: list[int]
    logprobs: list[float]
    finish_reason: str
    routed_experts: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateResponse:
    """The engine's answer. `prompt_logprobs[0]` is None: the first token has no context.

    `weight_version` is that of the weights which sampled every token; `UNPUBLISHED` where nobody gave the engine any.
    """

    choices: tuple[GenerateChoice, ...]
    weight_version: int
    prompt_token_ids: Sequence[int] = field(default_factory=list)
    prompt_logprobs: list[float | None] | None = None
    usage: dict[str, int] = field(default_factory=dict)
    request_id: str | None = None
