"""The chat routes: vLLM's own chat, with the version of the weights, and with prompts given as ids.

`/v1/chat/completions/tokens` takes `tokens`, the exact prompt ids, besides `messages`; the messages are rendered as
ever (tool and reasoning parsers need them), and then the ids take the place of what was rendered.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from fastapi import Request, Response
from fastapi.responses import StreamingResponse
from pydantic import ValidationError
from pydantic_core import from_json

from prl.serving.errors import EngineFailedError, InvalidFieldsError, UnknownModelError
from prl.serving.http import json_response, while_connected
from prl.serving.retries import RetryBook
from prl.serving.schemas import Body, Ids
from prl.types import EngineError, EngineUnavailableError, MalformedRequestError, PromptTooLongError

from .answers import REMEMBERED_TOKENS, check_finished, single_version, total_tokens
from .limits import Limits
from .placeholders import moved_placeholders
from .state import WeightState
from .vllm_api import Vllm

CHAT = "/v1/chat/completions"
TOKENS = "/v1/chat/completions/tokens"
STUMBLES = (AttributeError, LookupError, ArithmeticError, RecursionError)
"""What vLLM's readers of chat bodies run into where a field has a shape that they did not expect."""


class _Prompt(Body):
    tokens: Ids


@dataclass(slots=True)
class _Exchange:
    """What vLLM's chat object must be told, and tells, beyond its own arguments."""

    prompt_ids: list[int] | None
    weight_version: int | None = None


_exchange: ContextVar[_Exchange] = ContextVar("prl_chat_exchange")


class ChatService:
    """Answers chat bodies through vLLM's own chat serving object; `request_class` is vLLM's model of such a body."""

    def __init__(self, serving: Any, request_class: Any, vllm: Vllm, limits: Limits, state: WeightState) -> None:
        self._vllm = vllm
        self._limits = limits
        self._state = state
        self._serving = None if serving is None else _with_ids_and_versions(serving)
        self._request_class = request_class
        self._book = RetryBook(REMEMBERED_TOKENS, total_tokens)
        self._refuses: tuple[type[Exception], ...] = (*vllm.rejects, *STUMBLES)

    async def answer(self, request: Request, data: bytes, *, tokens: bool) -> Response:
        """Return the chat answer; with `tokens`, the body names its prompt's ids. Raise the `EngineError` family."""
        where = TOKENS if tokens else CHAT
        body = _object(data)
        ids = self._take_ids(body) if tokens else None
        chat = self._parsed(body, where)
        self._check(chat, where)
        if ids is not None:
            chat.return_token_ids = chat.logprobs = True
        exchange = _Exchange(ids)
        if chat.stream:
            stream = await while_connected(request, self._create(chat, request, exchange, where))
            return StreamingResponse(stream, media_type="text/event-stream")
        # a retry of the same request id gets the same answer
        work = self._book.answer(
            body.get("request_id"),
            lambda: hashlib.sha256(where.encode() + data).digest(),
            lambda: asyncio.ensure_future(self._whole_answer(chat, request, exchange, where)),
        )
        return json_response(await while_connected(request, work))

    async def _whole_answer(self, chat: Any, request: Request, exchange: _Exchange, where: str) -> dict[str, Any]:
        result = await self._create(chat, request, exchange, where)
        for choice in result.choices:
            if choice.finish_reason == "abort":
                check_finished(choice.finish_reason, where)
        answer: dict[str, Any] = result.model_dump()
        return answer | {"weight_version": exchange.weight_version}

    def _check(self, chat: Any, where: str) -> None:
        """Raise the typed error of a chat that this server cannot or must not pass on."""
        self._state.check()
        if chat.use_beam_search:
            raise InvalidFieldsError.with_fields([("use_beam_search", "Beam search has no sampling policy")], where)
        self._limits.check_scoring(chat.prompt_logprobs is not None)
        self._limits.check_ids(chat.stop_token_ids or (), "stop_token_ids")
        if self._serving is None:
            raise EngineUnavailableError(
                "this server has no chat: its model or its flags leave it out",
                where=where,
                next_step="start it with a tokenizer, or use /v1/generate",
            )

    def _take_ids(self, body: dict[str, Any]) -> list[int]:
        if "tokens" not in body:
            raise InvalidFieldsError.with_fields([("tokens", "Field required")], TOKENS)
        try:
            ids = _Prompt.model_validate({"tokens": body.pop("tokens")}).tokens
        except ValidationError as error:
            raise InvalidFieldsError.of(error, TOKENS) from error
        self._limits.check_prompt(ids, "tokens")
        return ids

    def _parsed(self, body: dict[str, Any], where: str) -> Any:
        known = self._request_class.model_fields
        body.pop("metadata", None)  # part of OpenAI's body, without effect here
        if not body.get("messages", True):
            raise InvalidFieldsError.with_fields([("messages", "List should have at least 1 item")], where)
        unknown = sorted(body.keys() - known.keys() - {field.alias for field in known.values()})
        if unknown:
            raise InvalidFieldsError.with_fields(
                [(name, "Extra inputs are not permitted") for name in unknown[:10]], where
            )
        try:
            return self._request_class.model_validate(body)
        except ValidationError as error:
            raise InvalidFieldsError.of(error, where) from error
        except self._refuses as error:
            raise InvalidFieldsError.with_fields([("body", f"vLLM cannot read it: {error}")], where) from error

    async def _create(self, chat: Any, request: Request, exchange: _Exchange, where: str) -> Any:
        _exchange.set(exchange)
        try:
            result = await self._serving.create_chat_completion(chat, request)  # type: ignore[union-attr]
        except self._vllm.dies as error:
            raise EngineUnavailableError(
                f"vLLM's engine has died: {error}", where=where, next_step="start the server again"
            ) from error
        except self._vllm.fails as error:
            raise EngineFailedError(f"vLLM failed: {error}", where=where, next_step="read the server's log") from error
        except self._refuses as error:
            raise _refused(f"vLLM cannot use the request: {error}", 400, where) from error
        failed = getattr(result, "error", None)
        if failed is not None:
            raise _refused(str(failed.message), int(failed.code), where)
        return result


def _with_ids_and_versions(serving: Any) -> Any:
    """Return a second view of vLLM's chat object, whose prompts may be given and whose answers name their weights."""
    base = type(serving)

    class Chat(base):  # type: ignore[misc, valid-type]
        async def render_chat_request(self, request: Any) -> Any:
            result = await super().render_chat_request(request)
            ids = _exchange.get().prompt_ids
            if ids is not None and isinstance(result, tuple):
                prompt = result[1][0]
                if images := prompt.get("mm_placeholders"):
                    prompt["mm_placeholders"] = moved_placeholders(prompt["prompt_token_ids"], ids, images, TOKENS)
                prompt["prompt_token_ids"] = ids
            return result

        async def chat_completion_full_generator(
            self, request: Any, result_generator: Any, *args: Any, **kwargs: Any
        ) -> Any:
            last: list[Any] = []
            answer = await super().chat_completion_full_generator(
                request, _remember(result_generator, last), *args, **kwargs
            )
            if last:
                _exchange.get().weight_version = single_version(last[-1].outputs)
            return answer

    view = object.__new__(Chat)
    view.__dict__.update(serving.__dict__)
    return view


async def _remember(outputs: Any, last: list[Any]) -> AsyncIterator[Any]:
    async for output in outputs:
        last[:] = [output]
        yield output


def _object(data: bytes) -> dict[str, Any]:
    try:
        # as strict as the other bodies: no lone surrogates, no NaN
        body = from_json(data, allow_inf_nan=False)
    except ValueError as error:
        raise InvalidFieldsError.with_fields([("body", f"Invalid JSON: {error}")], CHAT) from error
    if not isinstance(body, dict):
        raise InvalidFieldsError.with_fields([("body", "Input should be an object")], CHAT)
    return body


def _refused(message: str, status: int, where: str) -> EngineError:
    """Return the typed error of what vLLM refused in its own words."""
    kind: type[EngineError] = EngineFailedError
    if status == 404:
        kind = UnknownModelError
    elif "maximum context length" in message or "max_tokens must be at least 1, got 0" in message:
        kind = PromptTooLongError
    elif 400 <= status < 500:
        kind = MalformedRequestError
    elif status == 503:
        kind = EngineUnavailableError
    return kind(message, where=where, next_step="correct the request, or read the server's log")
