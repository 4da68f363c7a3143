"""What a request is checked against before it runs, and what marks one as sent again."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import msgspec
from pydantic import ValidationError

from prl.serving.errors import InvalidFieldsError
from prl.serving.limits import TokenLimits, unknown_model
from prl.serving.schemas import SamplingFields
from prl.types import GenerateRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits(TokenLimits):
    """The model's name besides its vocabulary and context; the engine has one rank."""

    name: str

    def check(self, request: GenerateRequest) -> None:
        """Raise the typed error of a request that cannot be served."""
        self.check_model(request.model)
        self.check_rank(request.data_parallel_rank)
        _check_sampling(request)
        self.check_ids(request.sampling.stop_token_ids, "stop_token_ids")
        self.check_prompt(request.prompt_token_ids, "prompt_token_ids")

    def check_model(self, name: str) -> None:
        """Raise `UnknownModelError` for a model that is not served here."""
        if name != self.name:
            raise unknown_model(name, [self.name])


def _check_sampling(request: GenerateRequest) -> None:
    params = request.sampling
    try:
        SamplingFields(
            max_tokens=params.max_tokens,
            min_tokens=params.min_tokens,
            temperature=params.temperature,
            top_p=params.top_p,
            top_k=params.top_k,
            n=params.n,
            seed=params.seed,
            stop_token_ids=list(params.stop_token_ids),
        )
    except ValidationError as error:
        raise InvalidFieldsError.of(error, "sampling fields of the request") from error


def fingerprint(request: GenerateRequest) -> bytes:
    """Return what a retry must repeat; not the rank: a client may try again on another one."""
    same = replace(request, prompt_token_ids=list(request.prompt_token_ids), data_parallel_rank=None, encoded=None)
    return hashlib.sha256(msgspec.json.encode(same)).digest()
