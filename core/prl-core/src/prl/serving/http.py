"""HTTP common to all routes: bodies in, JSON out, typed errors, and aborts for clients that go away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect

from prl.client.http import RANK_HEADER
from prl.types import MalformedRequestError, PrlError

from .errors import BodyTooLargeError, ClientGoneError, InvalidFieldsError, status_of
from .limits import TokenLimits
from .schemas import ErrorAnswer

SMALL_BODY = 1 << 20
CHAT_BODY = 64 << 20
ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorAnswer, "description": "The request cannot be served; `code` says why."},
    404: {"model": ErrorAnswer, "description": "Unknown model."},
    413: {"model": ErrorAnswer, "description": "The body is larger than any request for this model."},
    422: {"model": ErrorAnswer, "description": "Fields are missing, unknown or out of range."},
    500: {"model": ErrorAnswer, "description": "The engine's computation failed."},
    503: {"model": ErrorAnswer, "description": "The engine is not ready, or aborted the request."},
}
Result = TypeVar("Result")
BodyType = TypeVar("BodyType", bound=BaseModel)


class TypedErrorRoute(APIRoute):
    """A route whose `PrlError`s become typed JSON errors, whatever handlers the app around it has."""

    def get_route_handler(self) -> Callable[[Request], Any]:
        """Return the handler, with errors turned into answers."""
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            try:
                answer: Response = await handler(request)
            except PrlError as error:
                return error_response(error)
            return answer

        return handle


def error_response(error: PrlError) -> Response:
    """Return the JSON answer of an error in three parts; its class decides the status."""
    detail: dict[str, Any] = {
        "code": error.code,
        "message": error.what,
        "where": error.where,
        "next_step": error.next_step,
    }
    if fields := getattr(error, "fields", None):
        detail["fields"] = [{"field": name, "error": problem} for name, problem in fields]
    return json_response({"error": detail}, status_of(error))


def json_response(value: object, status: int = 200) -> Response:
    """Return a JSON answer; msgspec encodes long lists of ids ten times faster than the framework does."""
    return Response(msgspec.json.encode(value), status_code=status, media_type="application/json")


async def read_body(request: Request, model: type[BodyType], limit: int) -> BodyType:
    """Return the checked body; raise `BodyTooLargeError` beyond `limit` bytes before anything is parsed."""
    return parse_body(await read_bytes(request, limit), model)


async def read_bytes(request: Request, limit: int) -> bytes:
    """Return the body's bytes; raise `BodyTooLargeError` as soon as more than `limit` have come."""
    parts: list[bytes] = []
    size = 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > limit:
                raise BodyTooLargeError(
                    f"the body is larger than {limit} bytes",
                    where=f"{request.method} {request.url.path}",
                    next_step="send a prompt that fits the model's context",
                )
            parts.append(part)
    except ClientDisconnect:
        raise _client_gone(request) from None
    return b"".join(parts)


def parse_body(data: bytes, model: type[BodyType]) -> BodyType:
    """Return the checked body; raise `InvalidFieldsError` naming each wrong field."""
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        raise InvalidFieldsError.of(error, f"body of the request ({model.__name__})") from error


def data_parallel_rank(request: Request, limits: TokenLimits) -> int | None:
    """Return the rank that the header names; raise `MalformedRequestError` where the server has none such."""
    value = request.headers.get(RANK_HEADER)
    if value is None:
        return None
    try:
        rank = int(value)
    except ValueError:
        raise MalformedRequestError(
            f"{value!r} is not an integer", where=f"header {RANK_HEADER}", next_step=limits.ranks_told
        ) from None
    limits.check_rank(rank)
    return rank


async def while_connected(request: Request, work: Awaitable[Result]) -> Result:
    """Await the work; if the client disconnects first, cancel it, which aborts the request in the engine."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise _client_gone(request)
    finally:
        for pending in (task, gone):
            pending.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    """Return when the client is gone: the framework does not cancel a handler by itself."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _client_gone(request: Request) -> ClientGoneError:
    return ClientGoneError("the client closed the connection", where=request.url.path)


def described(
    body: type[BaseModel] | dict[str, Any] | None,
    answer: type[BaseModel],
    errors: dict[int | str, dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """Describe a route for the OpenAPI document: bodies are read and written as bytes, so FastAPI cannot infer them."""
    made: dict[str, Any] = {"response_model": None, "responses": {200: {"model": answer}, **ERRORS, **(errors or {})}}
    if body is not None:
        schema = body if isinstance(body, dict) else body.model_json_schema()
        content = {"application/json": {"schema": schema}}
        made["openapi_extra"] = {"requestBody": {"required": True, "content": content}}
    return made
