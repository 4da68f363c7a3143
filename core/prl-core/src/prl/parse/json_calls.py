"""JSON in calls: strict first, repaired only where strict reading fails."""

from __future__ import annotations

import ast
import json
import math
import warnings
from typing import Any, NoReturn

from prl.contracts import ReadCall

_SURROGATE = "\\ud"
_FILE = "<model text>"

# A model's text may hold escapes and numbers that Python warns about. The filter is for this text alone, and set once:
# `catch_warnings` is not safe between threads.
warnings.filterwarnings("ignore", message="invalid (escape|decimal)", module=_FILE)


class CallSyntaxError(ValueError):
    """A call's text is not what its format says; the message tells why."""


def load_object(text: str) -> dict[str, Any]:
    """Read one JSON object from `text`, which may be surrounded by white space.

    Strict JSON (RFC 8259) decides. Only where that fails, control characters written out in strings (line feeds in
    code, mostly) and then a Python literal (single quotes, `True`, `None`) are accepted. Lone surrogates become U+FFFD,
    so that the result can always be written as UTF-8. Raises `CallSyntaxError`, nothing else.
    """
    return _object(load_value(text))


def load_arguments(text: str) -> dict[str, Any]:
    """Read a call's arguments as `load_object` does; they may also be the JSON string of an object."""
    return _object(_decoded(load_value(text)))


def load_value(text: str) -> Any:
    """Read one JSON value as `load_object` does."""
    stripped = text.strip()
    try:
        value = _STRICT.decode(stripped)
    except (ValueError, RecursionError) as err:
        value = _load_repaired(stripped, err)
    if _SURROGATE not in stripped.lower():
        return value
    try:
        return _clean(value)
    except RecursionError as err:
        raise CallSyntaxError("nested too deeply") from err


def is_inside_string(text: str) -> bool:
    """Whether JSON text ends inside a string, so that what follows may belong to it."""
    inside = False
    position, size = 0, len(text)
    while position < size:
        character = text[position]
        if character == "\\" and inside:
            position += 2
            continue
        if character == '"':
            inside = not inside
        position += 1
    return inside


def _refuse_constant(name: str) -> NoReturn:
    raise CallSyntaxError(f"{name} is not JSON")


def _finite(text: str) -> float:
    """Read a number; one beyond floating point would be written back as a constant that is not JSON."""
    value = float(text)
    if math.isinf(value):
        raise CallSyntaxError(f"{text} is beyond the range of numbers")
    return value


_STRICT = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)
_LENIENT = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite, strict=False)


def _load_repaired(text: str, cause: Exception) -> Any:
    """Read JSON whose strings hold control characters, or a Python literal."""
    try:
        return _LENIENT.decode(text)
    except (ValueError, RecursionError):
        return _load_literal(text, cause)


def _load_literal(text: str, cause: Exception) -> Any:
    """Read a Python dict or list made of JSON's types; report the JSON error where it is none."""
    if not text.startswith(("{", "[")):
        raise CallSyntaxError(f"invalid JSON: {cause}") from cause
    try:
        value = ast.literal_eval(ast.parse(text, _FILE, "eval"))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        raise CallSyntaxError(f"invalid JSON: {cause}") from cause
    if not _is_json(value):
        raise CallSyntaxError(f"invalid JSON: {cause}") from cause
    return value


def _is_json(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_json(item) for key, item in value.items())
    if isinstance(value, list):
        return all(_is_json(item) for item in value)
    if isinstance(value, float):
        return value == value and value not in (float("inf"), float("-inf"))
    return value is None or isinstance(value, str | int | bool)


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, dict):
        return {clean_text(key): _clean(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_clean(item) for item in value]
    return value


def clean_text(text: str) -> str:
    """Replace lone surrogates by U+FFFD."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def read_named_call(text: str) -> ReadCall:
    """Read one call in the form `{"name": ..., "arguments": {...}}`; arguments may be the JSON string of an object."""
    try:
        name, arguments = _named_call(load_object(text))
    except CallSyntaxError as err:
        return ReadCall(text, error=str(err))
    return ReadCall(text, name, arguments)


def _decoded(arguments: Any) -> Any:
    """Return arguments, decoded where they are a JSON string."""
    return load_value(arguments) if isinstance(arguments, str) else arguments


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise CallSyntaxError(f"expected a JSON object, found {type(value).__name__}")
    return value


def _named_call(call: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return name and arguments of a JSON call; arguments may be an object or the JSON string of one."""
    name = call.get("name")
    if not isinstance(name, str) or not name:
        raise CallSyntaxError("the call has no function name")
    if "arguments" not in call:
        raise CallSyntaxError("the call has no arguments")
    arguments = _decoded(call["arguments"])
    if not isinstance(arguments, dict):
        raise CallSyntaxError(f"the arguments are a JSON {type(arguments).__name__}, not an object")
    return name, arguments
