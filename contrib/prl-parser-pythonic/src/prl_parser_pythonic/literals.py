"""Python literals for JSON values: written by hand, read from the syntax tree, never evaluated."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from typing import Any

_NAMES = {"true": True, "false": False, "null": None}


class NotALiteralError(ValueError):
    """An expression is no JSON value; the message tells why."""


def write_literal(value: Any) -> str:
    """Write a JSON value as a Python literal on one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!r}: {write_literal(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(write_literal, value)) + "]"
    return repr(value)


def read_literal(node: ast.expr) -> Any:
    """Read a JSON value from a syntax tree; raise `NotALiteralError` for anything that would have to be evaluated."""
    match node:
        case ast.Constant(value=str() | bool() | int() | None as value):
            return _clean(value) if isinstance(value, str) else value
        case ast.Constant(value=float() as value) if math.isfinite(value):
            return value
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=ast.Constant(value=int() | float() as value)):
            if isinstance(value, bool) or not math.isfinite(value):
                raise NotALiteralError("a sign stands before something that is no number")
            return -value if isinstance(node.op, ast.USub) else value
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [read_literal(item) for item in items]
        case ast.Dict():
            return _read_dict(node)
        case ast.Name(id=name) if name in _NAMES:
            return _NAMES[name]
        case ast.Name(id=name):
            raise NotALiteralError(f"{name} is a variable, not a value")
    raise NotALiteralError(f"a {type(node).__name__} is not a value")


def _read_dict(node: ast.Dict) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in zip(node.keys, node.values, strict=True):
        if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
            raise NotALiteralError("a dict has a key that is not a string")
        if key.value in found:
            raise NotALiteralError(f"the key {key.value!r} is given twice")
        found[_clean(key.value)] = read_literal(value)
    return found


def _clean(text: str) -> str:
    """Replace halves of surrogate pairs, which no UTF-8 can carry."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
