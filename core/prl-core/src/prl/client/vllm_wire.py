"""Bytes of vLLM's own `/inference/v1/generate`: both shapes its log-probabilities have had, checked like our own.

vLLM 0.32 names a sampled token by `token_id` (vllm/entrypoints/scale_out/token_in_token_out/protocol.py); earlier
versions by `token: "token_id:N"`, the form of their chat route.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from prl.types import GenerateChoice, GenerateRequest, GenerateResponse

from . import wire
from .experts import read_routing

TOKEN_PREFIX = "token_id:"


class _Entry(msgspec.Struct, gc=False):
    logprob: float
    token_id: int | None = None
    token: str | None = None


class _Logprobs(msgspec.Struct, gc=False):
    content: list[_Entry] | None = None


class _Span(msgspec.Struct, gc=False):
    version: str


class _Choice(msgspec.Struct, gc=False):
    token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None
    routed_experts: Any = None
    weight_versions: list[_Span] | None = None


class _PromptEntry(msgspec.Struct, gc=False):
    logprob: float


class _Answer(msgspec.Struct, gc=False):
    choices: list[_Choice]
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: list[dict[str, _PromptEntry] | None] | None = None
    usage: dict[str, Any] | None = None
    request_id: str | None = None


_decoder = msgspec.json.Decoder(_Answer)


def encode_generate(request: GenerateRequest) -> bytes:
    """Return the JSON body of vLLM's route.

    `ignore_eos` because a completion ends at exactly the request's stop ids; `logprobs: 0` is the sampled token alone.
    The request id is left out: vLLM refuses a second request of the same id where we mean a retry.
    """
    params = request.sampling
    sampling: dict[str, Any] = {
        "n": params.n,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k if params.top_k > 0 else -1,
        "max_tokens": params.max_tokens,
        "min_tokens": params.min_tokens,
        "seed": params.seed,
        "stop_token_ids": list(params.stop_token_ids),
        "ignore_eos": True,
        "logprobs": 0,
        "prompt_logprobs": 0 if request.prompt_logprobs else None,
        "detokenize": False,
        "skip_special_tokens": False,
    }
    body: dict[str, Any] = {
        "model": request.model,
        "token_ids": wire.prompt_json(request),
        "sampling_params": {name: value for name, value in sampling.items() if value is not None},
        "priority": request.priority or None,
        "cache_salt": request.cache_salt or None,
    }
    return msgspec.json.encode({name: value for name, value in body.items() if value is not None})


def decode_generate(body: bytes, request: GenerateRequest, where: str, weight_version: int) -> GenerateResponse:
    """Return the checked answer; raise `MalformedResponseError` for anything inconsistent with the request."""
    try:
        answer = _decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise wire.malformed(f"the answer is not a vLLM generate answer: {error}", where) from error
    wire.check_request(len(answer.choices), answer.prompt_token_ids, request, where)
    versions = [_version(choice.weight_versions) for choice in answer.choices]
    return GenerateResponse(
        choices=tuple(_checked(choice, f"choices[{index}]", where) for index, choice in enumerate(answer.choices)),
        weight_version=min((version for version in versions if version is not None), default=weight_version),
        prompt_token_ids=request.prompt_token_ids,
        prompt_logprobs=wire.check_prompt(_prompt_logprobs(answer.prompt_logprobs, request, where), request, where),
        usage=wire.counts(answer.usage),
        request_id=answer.request_id,
    )


def _checked(choice: _Choice, name: str, where: str) -> GenerateChoice:
    if choice.token_ids is None or choice.logprobs is None or choice.logprobs.content is None:
        raise wire.malformed(f"{name} has no token ids or no log-probabilities", where)
    wire.check_finish(choice.finish_reason, len(choice.token_ids), name, where)
    entries = choice.logprobs.content
    logprobs = [entry.logprob for entry in entries]
    wire.check_tokens(choice.token_ids, logprobs, name, where)
    for position, (entry, token) in enumerate(zip(entries, choice.token_ids, strict=True)):
        if _named(entry) not in (None, token):
            raise wire.malformed(
                f"{name}.logprobs[{position}] is of token {_named(entry)}, the sampled one is {token}", where
            )
    return GenerateChoice(
        token_ids=choice.token_ids,
        logprobs=logprobs,
        finish_reason=str(choice.finish_reason),
        routed_experts=read_routing(choice.routed_experts, name, where),
    )


def _named(entry: _Entry) -> int | None:
    """Return the token an entry is of, in either shape; None where it is named by its text."""
    if entry.token_id is not None:
        return entry.token_id
    number = (entry.token or "").removeprefix(TOKEN_PREFIX)
    return int(number) if number != entry.token and number.isdecimal() else None


def _version(spans: Sequence[_Span] | None) -> int | None:
    """Return the oldest weights among the labels that are numbers; vLLM's own label is "default"."""
    return min((int(span.version) for span in spans or () if span.version.isdecimal()), default=None)


def _prompt_logprobs(
    values: list[dict[str, _PromptEntry] | None] | None, request: GenerateRequest, where: str
) -> list[float | None] | None:
    """Return one log-probability a prompt token, by its id: a server may put other candidates beside it."""
    if values is None or not request.prompt_logprobs:
        return None
    if len(values) != len(request.prompt_token_ids):
        raise wire.malformed(
            f"{len(values)} prompt_logprobs came for {len(request.prompt_token_ids)} prompt ids", where
        )
    found: list[float | None] = []
    for position, (value, token) in enumerate(zip(values, request.prompt_token_ids, strict=True)):
        entry = None if value is None else value.get(str(token))
        if value is not None and entry is None:
            raise wire.malformed(f"prompt_logprobs[{position}] does not name token {token}", where)
        found.append(None if entry is None else entry.logprob)
    return found
