"""Bytes of the engine routes: requests out, answers in, each checked before anyone trusts it.

Nothing missing is filled in: an invented 0.0 would read as probability one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from prl.types import (
    EngineError,
    EngineUnavailableError,
    GenerateChoice,
    GenerateRequest,
    GenerateResponse,
    MalformedRequestError,
    MalformedResponseError,
    PromptTooLongError,
    RequestAbortedError,
    WeightTransferError,
)

SENTINEL = -9999.0  # what some engines write where they have no log-probability
ROUNDING = 1e-3  # a log-probability may exceed 0 by so much, from rounding in half precision
FINISH_REASONS = frozenset({"stop", "length", "abort"})
TRANSIENT = frozenset({408, 429, 502, 503, 504, 520, 521, 522, 523, 524, 529})
"""Statuses of a server, or of a proxy before it, that has no time or is not there: the same may succeed later."""
TOO_LONG = ("maximum context length", "maximum model length")  # what servers without a code for it say


class _Choice(msgspec.Struct, gc=False):
    token_ids: list[int]
    logprobs: list[float]
    finish_reason: str
    routed_experts: Any = None


class _Answer(msgspec.Struct, gc=False):
    choices: list[_Choice]
    weight_version: int
    prompt_token_ids: msgspec.Raw = msgspec.Raw()
    prompt_logprobs: list[float | None] | None = None
    usage: dict[str, Any] | None = None
    request_id: str | None = None


_decoder = msgspec.json.Decoder(_Answer)


def encode_generate(request: GenerateRequest) -> bytes:
    """Return the JSON body of `POST /v1/generate`; fields at their defaults are left out."""
    params = request.sampling
    body: dict[str, Any] = {
        "model": request.model,
        "prompt_token_ids": prompt_json(request),
        "max_tokens": params.max_tokens,
        "min_tokens": params.min_tokens or None,
        "temperature": params.temperature,
        "top_p": params.top_p if params.top_p != 1.0 else None,
        "top_k": params.top_k if params.top_k > 0 else None,
        "n": params.n if params.n != 1 else None,
        "seed": params.seed,
        "stop_token_ids": list(params.stop_token_ids) or None,
        "prompt_logprobs": request.prompt_logprobs or None,
        "priority": request.priority or None,
        "cache_salt": request.cache_salt,
        "request_id": request.request_id,
    }
    return msgspec.json.encode({name: value for name, value in body.items() if value is not None})


def prompt_json(request: GenerateRequest) -> msgspec.Raw:
    """Return the prompt's ids as JSON, encoded where the caller did not keep them so."""
    return msgspec.Raw(request.prompt_json or msgspec.json.encode(list(request.prompt_token_ids)))


def decode_generate(body: bytes, request: GenerateRequest, where: str) -> GenerateResponse:
    """Return the checked answer; raise `MalformedResponseError` for anything inconsistent with the request."""
    try:
        answer = _decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise malformed(f"the answer is not a generate answer: {error}", where) from error
    check_request(len(answer.choices), _other_prompt(answer.prompt_token_ids, request, where), request, where)
    choices = tuple(_checked(choice, index, where) for index, choice in enumerate(answer.choices))
    return GenerateResponse(
        choices=choices,
        weight_version=answer.weight_version,
        prompt_token_ids=request.prompt_token_ids,
        prompt_logprobs=check_prompt(answer.prompt_logprobs, request, where),
        usage=counts(answer.usage),
        request_id=answer.request_id,
    )


def _other_prompt(said: msgspec.Raw, request: GenerateRequest, where: str) -> list[int] | None:
    """Return the prompt that the answer says it is for; None where it says none, or repeats our own bytes."""
    raw, kept = memoryview(said), request.prompt_json
    if not raw or (kept is not None and raw == kept):
        return None
    try:
        return msgspec.json.decode(raw, type=list[int] | None)
    except msgspec.MsgspecError as error:
        raise malformed(f"the answer's prompt_token_ids are not ids: {error}", where) from error


def counts(usage: Mapping[str, Any] | None) -> dict[str, int]:
    """Return the token counts of an answer; servers put other things beside them."""
    return {name: count for name, count in (usage or {}).items() if isinstance(count, int)}


def check_request(completions: int, prompt: list[int] | None, request: GenerateRequest, where: str) -> None:
    """Raise `MalformedResponseError` unless the answer has the completions that were asked for, of the prompt sent."""
    if completions != request.sampling.n:
        raise malformed(f"{request.sampling.n} completions were asked for, {completions} came", where)
    if prompt is not None and prompt != list(request.prompt_token_ids):
        raise malformed("the answer is for other prompt ids than were sent", where)


def check_finish(reason: str | None, tokens: int, name: str, where: str) -> None:
    """Raise for a completion that did not end by itself: `RequestAbortedError`, or `MalformedResponseError`."""
    if reason not in FINISH_REASONS:
        raise malformed(f"{name}.finish_reason is {reason!r}", where)
    if reason == "abort":
        raise RequestAbortedError(
            f"the engine aborted the request after {tokens} tokens",
            where=where,
            next_step="send the request again; a partial completion is never used",
        )


def _checked(choice: _Choice, index: int, where: str) -> GenerateChoice:
    name = f"choices[{index}]"
    check_finish(choice.finish_reason, len(choice.token_ids), name, where)
    check_tokens(choice.token_ids, choice.logprobs, name, where)
    return GenerateChoice(
        token_ids=choice.token_ids,
        logprobs=choice.logprobs,
        finish_reason=choice.finish_reason,
        routed_experts=choice.routed_experts,
    )


def check_tokens(token_ids: Sequence[int], logprobs: Sequence[float], name: str, where: str) -> None:
    """Raise `MalformedResponseError` unless every id is valid and has one real log-probability."""
    if len(token_ids) != len(logprobs):
        raise malformed(f"{name} has {len(token_ids)} token ids but {len(logprobs)} log-probabilities", where)
    if token_ids and min(token_ids) < 0:
        raise malformed(f"{name}.token_ids holds {min(token_ids)}", where)
    if not _are_logprobs(logprobs):
        position, value = next(item for item in enumerate(logprobs) if not _is_logprob(item[1]))
        raise malformed(f"{name}.logprobs[{position}] is {value}, which is no log-probability", where)


def check_prompt(values: list[float | None] | None, request: GenerateRequest, where: str) -> list[float | None] | None:
    """Return the prompt's log-probabilities where they were asked for; raise unless each but the first is real."""
    if not request.prompt_logprobs:
        return None
    if values is None:
        raise malformed("prompt_logprobs were asked for, but none came", where)
    if len(values) != len(request.prompt_token_ids):
        raise malformed(f"{len(values)} prompt_logprobs came for {len(request.prompt_token_ids)} prompt ids", where)
    for position, value in enumerate(values):
        if (value is not None) if position == 0 else (value is None or not _is_logprob(value)):
            raise malformed(f"prompt_logprobs[{position}] is {value}", where)
    return values


def _are_logprobs(values: Sequence[float]) -> bool:
    """Judge all at once, which is far cheaper than one by one: a value that is not finite spoils the sum."""
    return not values or (math.isfinite(sum(values)) and min(values) > SENTINEL and max(values) <= ROUNDING)


def _is_logprob(value: float) -> bool:
    return math.isfinite(value) and SENTINEL < value <= ROUNDING


def decode_object(body: bytes, where: str) -> dict[str, Any]:
    """Return a JSON object; raise `MalformedResponseError` for anything else."""
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise malformed(f"the answer is not a JSON object: {error}", where) from error


def decode_error(status: int, body: bytes, where: str) -> EngineError:
    """Return the typed error of an answer that is not 200, with the engine's own three parts where it sent them."""
    detail = _error_detail(body)
    code = str(detail.get("code") or detail.get("type") or "")
    what = str(detail.get("message") or body[:300].decode(errors="replace").strip() or "no message")
    kind = _BY_CODE.get(code) or _by_status(status, what)
    source = str(detail.get("where") or "")
    return kind(
        f"{what} (HTTP {status})",
        where=f"{where}; {source}" if source else where,
        next_step=str(detail.get("next_step") or _NEXT.get(status, "read the engine's log")),
    )


def _error_detail(body: bytes) -> Mapping[str, Any]:
    try:
        decoded = msgspec.json.decode(body)
    except msgspec.MsgspecError:
        return {}
    detail = decoded.get("error", decoded) if isinstance(decoded, dict) else {}
    return detail if isinstance(detail, dict) else {"message": detail}


_NEXT = {404: "this server lacks the route or the model: use a prl engine (`prl serve`), or another client mode"}


def _by_status(status: int, what: str) -> type[EngineError]:
    if status in TRANSIENT:
        return EngineUnavailableError
    if status == 400 and any(words in what for words in TOO_LONG):
        return PromptTooLongError
    return MalformedRequestError if status in (400, 422) else EngineError


_BY_CODE: dict[str, type[EngineError]] = {
    PromptTooLongError.code: PromptTooLongError,
    "context_length_exceeded": PromptTooLongError,
    MalformedRequestError.code: MalformedRequestError,
    EngineUnavailableError.code: EngineUnavailableError,
    RequestAbortedError.code: RequestAbortedError,
    WeightTransferError.code: WeightTransferError,
}


def malformed(what: str, where: str) -> MalformedResponseError:
    """Return the error of an answer that cannot be trusted."""
    return MalformedResponseError(
        what,
        where=where,
        next_step="check that this server is a prl engine of the same version; nothing was filled in",
    )
