"""The routes that take token ids and give token ids: prl's own, and the one that vLLM has without a plugin."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from prl.types import (
    UNPUBLISHED,
    ConfigError,
    GenerateRequest,
    GenerateResponse,
    PromptTooLongError,
    close_names,
)

from . import vllm_wire, wire


class GenerateRoute(Protocol):
    """How a generate request is written for a server, and its answer read."""

    path: str
    needs_max_tokens: bool
    """Whether the client must say how many tokens are left of the context, for a server that would guess."""
    joins_retries: bool
    """Whether the server knows a repeated request by its key, and samples once for both."""

    def encode(self, request: GenerateRequest) -> bytes:
        """Return the body of the request."""
        ...

    def decode(self, body: bytes, request: GenerateRequest, where: str) -> GenerateResponse:
        """Return the checked answer; raise `MalformedResponseError`, or `RequestAbortedError`."""
        ...


class PrlRoute:
    """`POST /v1/generate`, as prl's engines serve it."""

    path = "/v1/generate"
    needs_max_tokens = False
    joins_retries = True

    def encode(self, request: GenerateRequest) -> bytes:
        """Return the body of the request."""
        return wire.encode_generate(request)

    def decode(self, body: bytes, request: GenerateRequest, where: str) -> GenerateResponse:
        """Return the checked answer."""
        return wire.decode_generate(body, request, where)


class VllmRoute:
    """`POST /inference/v1/generate` of an unmodified vLLM (`--enable-scale-out` from vLLM 0.30 on).

    It has no idempotency key and does not say which weights it holds: answers carry `weight_version`, that of weights
    which nobody published, unless vLLM labels its tokens with a number of its own.
    """

    path = "/inference/v1/generate"
    needs_max_tokens = True
    joins_retries = False

    def __init__(self, weight_version: int = UNPUBLISHED) -> None:
        self.weight_version = weight_version

    def encode(self, request: GenerateRequest) -> bytes:
        """Return the body of the request."""
        return vllm_wire.encode_generate(request)

    def decode(self, body: bytes, request: GenerateRequest, where: str) -> GenerateResponse:
        """Return the checked answer, in either of the two shapes vLLM has had."""
        return vllm_wire.decode_generate(body, request, where, self.weight_version)


ROUTES: tuple[GenerateRoute, ...] = (PrlRoute(), VllmRoute())


def find_route(path: str) -> GenerateRoute:
    """Return the route of a path; raise `ConfigError` for one that the client does not speak."""
    found = {route.path: route for route in ROUTES}
    if path not in found:
        raise ConfigError(
            f"the client speaks no route {path!r}",
            where="engine.route",
            next_step=close_names(path, found) or f"use one of {', '.join(found)}",
        )
    return found[path]


def with_room(request: GenerateRequest, context: int, where: str) -> GenerateRequest:
    """Return the request with `max_tokens` set to what is left of the context; raise `PromptTooLongError` at none."""
    left = context - len(request.prompt_token_ids)
    if left < 1:
        raise PromptTooLongError(
            f"the prompt has {len(request.prompt_token_ids)} tokens; the context of {context} leaves none to sample",
            where=where,
            next_step="end the rollout here as truncated, shorten the prompt, or serve with a longer context",
        )
    return replace(request, sampling=replace(request.sampling, max_tokens=left))
