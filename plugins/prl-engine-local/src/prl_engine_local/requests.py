"""Checking requests, and answering a repeated request id once."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace

import msgspec
from pydantic import ValidationError

from prl.types import (
    GenerateRequest,
    GenerateResponse,
    MalformedRequestError,
    PromptTooLongError,
    close_names,
)

from .errors import InvalidFieldsError, UnknownModelError
from .schemas import SamplingFields


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request is checked against: the model's name, its vocabulary and its context (tokens)."""

    name: str
    vocabulary: int
    context: int

    def check(self, request: GenerateRequest) -> None:
        """Raise the typed error of a request that cannot be served."""
        self.check_model(request.model)
        if request.data_parallel_rank not in (None, 0):
            raise MalformedRequestError(
                f"data-parallel rank {request.data_parallel_rank} is out of range",
                where="X-data-parallel-rank; the local engine has one rank, 0",
                next_step="leave the header out, or send 0",
            )
        self._check_sampling(request)
        self._check_prompt(request)

    def check_model(self, name: str) -> None:
        """Raise `UnknownModelError` for a model that is not served here."""
        if name != self.name:
            raise UnknownModelError(
                f"the model {name!r} is not served here",
                where=f"this engine serves {self.name!r}",
                next_step=close_names(name, [self.name]) or f"send model = {self.name!r}",
            )

    def _check_sampling(self, request: GenerateRequest) -> None:
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
        self._check_ids(params.stop_token_ids, "stop_token_ids")

    def _check_prompt(self, request: GenerateRequest) -> None:
        ids = request.prompt_token_ids
        if len(ids) == 0:
            raise MalformedRequestError(
                "the prompt is empty", where="prompt_token_ids", next_step="send at least one token id"
            )
        self._check_ids(ids, "prompt_token_ids")
        if len(ids) >= self.context:
            raise PromptTooLongError(
                f"the prompt has {len(ids)} tokens; the context of {self.context} leaves none to sample",
                where=f"prompt_token_ids; model {self.name!r}",
                next_step="end the rollout here as truncated, shorten the prompt, or raise max_model_len",
            )

    def _check_ids(self, ids: object, field: str) -> None:
        values = list(ids)  # type: ignore[call-overload]
        if values and not (min(values) >= 0 and max(values) < self.vocabulary):
            wrong = next(value for value in values if not 0 <= value < self.vocabulary)
            raise MalformedRequestError(
                f"token id {wrong} is outside the vocabulary of {self.vocabulary}",
                where=f"{field}[{values.index(wrong)}]",
                next_step="use the tokenizer that belongs to the served model",
            )


@dataclass(eq=False, slots=True)
class _Entry:
    future: Future[GenerateResponse]
    fingerprint: bytes
    waiters: int = 0
    tokens: int = 0


class RequestBook:
    """Requests in flight and recently finished, by id. Safe from several threads and event loops."""

    def __init__(self, submit: Callable[[GenerateRequest], Future[GenerateResponse]], remembered_tokens: int) -> None:
        self._submit = submit
        self._limit = remembered_tokens
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._tokens = 0

    async def answer(self, request: GenerateRequest) -> GenerateResponse:
        """Return the answer; a known id waits for, or repeats, the first one. The last waiter to leave aborts it."""
        entry = self._enter(request)
        try:
            return await asyncio.shield(asyncio.wrap_future(entry.future))
        finally:
            self._leave(request.request_id, entry)

    def _enter(self, request: GenerateRequest) -> _Entry:
        key = request.request_id
        if key is None:
            return _Entry(self._submit(request), b"", waiters=1)
        # not the rank: a client may try again on another one
        same = replace(request, data_parallel_rank=None, encoded=None)
        fingerprint = hashlib.sha256(msgspec.json.encode(same)).digest()
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                entry = self._entries[key] = _Entry(self._submit(request), fingerprint)
            elif entry.fingerprint != fingerprint:
                raise MalformedRequestError(
                    f"request id {key!r} was used for another request",
                    where="request_id",
                    next_step="use a new id for each request; the same id is only for retries",
                )
            entry.waiters += 1
            return entry

    def _leave(self, key: str | None, entry: _Entry) -> None:
        with self._lock:
            entry.waiters -= 1
            if not entry.future.done():
                if entry.waiters == 0:
                    entry.future.cancel()
                    self._drop(key, entry)
            elif entry.future.cancelled() or entry.future.exception() is not None:
                self._drop(key, entry)
            elif key is not None and not entry.tokens:
                entry.tokens = max(1, entry.future.result().usage["total_tokens"])
                self._tokens += entry.tokens
                self._trim()

    def _drop(self, key: str | None, entry: _Entry) -> None:
        if key is not None and self._entries.get(key) is entry:
            del self._entries[key]

    def _trim(self) -> None:
        """Forget the oldest finished answers beyond the limit; what is in flight stays."""
        for key in list(self._entries):
            if self._tokens <= self._limit:
                return
            entry = self._entries[key]
            if entry.tokens and not entry.waiters:
                self._tokens -= entry.tokens
                del self._entries[key]
