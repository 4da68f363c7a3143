"""When two messages are the same one: agents send a conversation back with small differences that mean nothing.

Not told apart: null, absent and empty content; a text and its parts; other white space, key order or spelling of
numbers in the JSON of arguments; fields that SDKs add; reasoning that was left out; white space around what the model
said, and a name given to it. All else is a change of history.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from prl.render.conversation import REASONING_FIELDS, view_message
from prl.types import Message, RenderError, ToolSpec

EXACT = 2**53  # integers below are what they are as floating-point numbers
LARGEST = 10**308

_encode = json.JSONEncoder(sort_keys=True).encode  # made once: `json.dumps` makes one for every call


def history_keys(messages: Sequence[Message]) -> list[bytes]:
    """Return one key per message, of the history that ends with it; raise `RenderError` for a malformed message."""
    keys: list[bytes] = []
    key = b""
    for index, message in enumerate(messages):
        key = extend_key(key, message, index)
        keys.append(key)
    return keys


def extend_key(before: bytes, message: Mapping[str, Any], index: int) -> bytes:
    """Return the key of a history and one more message."""
    view = view_message(message, index)
    calls = [[call.id, call.name, _arguments(call.arguments, index)] for call in view.calls]
    media = message.get("content") if view.parts else None
    fields: list[Any] = [view.role, view.text, media, calls, view.tool_call_id, view.name]
    if view.role == "assistant":  # what was sampled is never written anew: neither matters for the ids
        fields[1], fields[5] = view.text.strip(), None
    return hashlib.sha256(before + _dump(fields, index)).digest()


def tools_key(tools: Sequence[ToolSpec] | None) -> bytes:
    """Return the key of the tools offered; their order counts, as the prompt shows it."""
    return _dump(list(tools or ()), 0)


def reasoning_agrees(sent: Sequence[Message], known: Sequence[Message]) -> bool:
    """Whether no message brings reasoning that differs from what the model said; absent reasoning is no change."""
    return all(
        _reasoning(theirs) in ("", _reasoning(ours))
        for theirs, ours in zip(sent, known, strict=True)
        if theirs["role"] == "assistant"
    )


def likeness(sent: Sequence[Message], known: Sequence[Message]) -> int:
    """Return how many of the model's messages came back to the letter: of turns that are the same one, whose is it?"""
    return sum(
        (view_message(theirs, 0).text, _reasoning(theirs)) == (view_message(ours, 0).text, _reasoning(ours))
        for theirs, ours in zip(sent, known, strict=True)
        if theirs["role"] == "assistant"
    )


def _reasoning(message: Mapping[str, Any]) -> str:
    return next((str(message[name]).strip() for name in REASONING_FIELDS if message.get(name)), "")


def _arguments(arguments: Any, index: int) -> Any:
    """Return a call's arguments as data; text that is no JSON stays as it is."""
    try:
        return _decode(arguments if isinstance(arguments, str) else _encode(arguments))
    except ValueError:
        return arguments
    except RecursionError as error:
        raise _too_deep(index) from error


def _integer(text: str) -> float:
    """Read a number as JavaScript does: it has one kind of them."""
    value = int(text)
    return float(value) if EXACT <= abs(value) < LARGEST else value


def _fraction(text: str) -> float:
    """Read a number as JavaScript does: it has no 1.0."""
    value = float(text)
    return int(value) if abs(value) < EXACT and value.is_integer() else value


_decode = json.JSONDecoder(parse_int=_integer, parse_float=_fraction).decode


def _dump(value: Any, index: int) -> bytes:
    try:
        return _encode(value).encode()
    except RecursionError as error:
        raise _too_deep(index) from error


def _too_deep(index: int) -> RenderError:
    return RenderError(
        f"message {index} is nested too deeply", where=f"messages[{index}]", next_step="send flatter arguments"
    )
