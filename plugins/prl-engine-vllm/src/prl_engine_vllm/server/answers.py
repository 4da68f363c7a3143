"""From vLLM's outputs to the answer: every log-probability real, every choice from one version of the weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from prl.serving.errors import EngineFailedError, NotFiniteError
from prl.types import UNPUBLISHED, RequestAbortedError

INITIAL_LABEL = "default"
"""How vLLM labels the weights that it was started with."""
UNDEFINED_LABEL = "undefined"
WHERE = "POST /v1/generate"
FINISHED = frozenset({"stop", "length"})
REMEMBERED_TOKENS = 2_000_000
"""Tokens of finished answers that are kept for retries of their request ids."""


def total_tokens(answer: dict[str, Any]) -> int:
    """Return the tokens of an answer, prompt included."""
    count: int = answer["usage"]["total_tokens"]
    return count


def generate_answer(output: Any, body: Any) -> dict[str, Any]:
    """Return the JSON-ready answer of a finished request; raise rather than fill anything in."""
    completions = sorted(output.outputs, key=lambda completion: completion.index)
    if len(completions) != body.n:
        raise EngineFailedError(
            f"vLLM returned {len(completions)} completions, {body.n} were asked for",
            where=WHERE,
            next_step="read the server's log",
        )
    prompt = len(body.prompt_token_ids)
    sampled = sum(len(completion.token_ids) for completion in completions)
    return {
        "choices": [choice(completion) for completion in completions],
        "prompt_token_ids": body.prompt_token_ids,
        "prompt_logprobs": _prompt_logprobs(output, body) if body.prompt_logprobs else None,
        "usage": {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled},
        "weight_version": single_version(completions),
        "request_id": body.request_id,
    }


def choice(completion: Any) -> dict[str, Any]:
    """Return one completion; raise where it was aborted, failed, or lacks a log-probability."""
    check_finished(completion.finish_reason, WHERE)
    ids = list(completion.token_ids)
    routed = completion.routed_experts
    return {
        "token_ids": ids,
        "logprobs": _logprobs(ids, completion.logprobs or (), "logprobs"),
        "finish_reason": completion.finish_reason,
        "routed_experts": None if routed is None else routed.tolist(),
    }


def check_finished(reason: str | None, where: str) -> None:
    """Raise the typed error of a completion that did not end by itself."""
    if reason in FINISHED:
        return
    if reason == "abort":
        raise RequestAbortedError(
            "the engine aborted the request",
            where=where,
            next_step="send the request again; a partial completion is never used",
        )
    raise EngineFailedError(
        f"the request ended with finish reason {reason!r}", where=where, next_step="read the server's log"
    )


def single_version(completions: Sequence[Any]) -> int:
    """Return the version that sampled every token; raise `RequestAbortedError` where weights changed in between."""
    labels = {label for completion in completions for label in _labels(completion)}
    if len(labels) > 1:
        raise RequestAbortedError(
            f"the weights changed while the request ran ({', '.join(sorted(labels))})",
            where=WHERE,
            next_step="send the request again: an answer never mixes versions",
        )
    if not labels:
        raise EngineFailedError(
            "vLLM does not say which weights it sampled with",
            where=WHERE,
            next_step="use vLLM 0.32 or newer",
        )
    return version_of(labels.pop())


def version_of(label: str) -> int:
    """Return the version that a label of vLLM's names."""
    if label == INITIAL_LABEL:
        return UNPUBLISHED
    if label.isascii() and label.isdigit():
        return int(label)
    raise EngineFailedError(
        f"the weights have the label {label!r}, which is no version",
        where="vLLM's weight version",
        next_step="load weights through POST /v1/weights only",
    )


def _labels(completion: Any) -> list[str]:
    return [str(span.version) for span in completion.weight_versions or ()]


def _prompt_logprobs(output: Any, body: Any) -> list[float | None]:
    found = output.prompt_logprobs
    ids = body.prompt_token_ids
    if found is None or len(found) != len(ids):
        raise EngineFailedError(
            f"vLLM returned {0 if found is None else len(found)} prompt log-probabilities for {len(ids)} ids",
            where=WHERE,
            next_step="read the server's log",
        )
    return [None, *_logprobs(ids[1:], [found[i] for i in range(1, len(found))], "prompt_logprobs")]


def _logprobs(ids: Sequence[int], found: Sequence[Mapping[int, Any]], field: str) -> list[float]:
    """Take each id's own entry: others may stand beside it, and a missing one must not read as probability one."""
    if len(found) != len(ids):
        raise EngineFailedError(
            f"vLLM returned {len(found)} {field} for {len(ids)} ids", where=WHERE, next_step="read the server's log"
        )
    values: list[float] = []
    for position, (token, entries) in enumerate(zip(ids, found, strict=True)):
        entry = entries.get(token)
        if entry is None or not math.isfinite(entry.logprob):
            raise NotFiniteError(
                f"{field}[{position}] of token {token} is {None if entry is None else entry.logprob}",
                where=WHERE,
                next_step="check the weights; a model with values that are not finite cannot be sampled",
            )
        values.append(float(entry.logprob))
    return values
