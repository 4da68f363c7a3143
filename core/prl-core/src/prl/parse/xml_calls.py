"""Calls written as `<function=name><parameter=key>value</parameter></function>` (Qwen3-Coder, Qwen3.5, Nemotron-3)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from prl.contracts import ReadCall
from prl.parse.schema import coerce_text, parameter_schema
from prl.types import ToolSpec

_FUNCTION = re.compile(r"(?:^|(?<=</function>))\s*<function=")
_HEAD = re.compile(r"\s*<function=([^>\n]*)>")
_PARAMETER = re.compile(
    r"\s*<parameter=([^>\n]*)>(.*?)(?:</parameter>(?=\s*(?:<parameter=|\Z))|(?=\n<parameter=)|\Z)", re.DOTALL
)


def read_functions(region: str, tools: Sequence[ToolSpec] | None) -> list[ReadCall]:
    """Read all functions of a region; values take the types that the tool's schema declares. Never raises."""
    starts = [match.start() for match in _FUNCTION.finditer(region)]
    if not starts or region[: starts[0]].strip():
        return [ReadCall(region, error="expected <function=name>")]
    ends = [*starts[1:], len(region)]
    return [_read_function(region[start:end], tools) for start, end in zip(starts, ends, strict=True)]


def is_inside_parameter(region: str) -> bool:
    """Whether a parameter is still open, so that what follows may belong to its value."""
    return region.rfind("<parameter=") > region.rfind("</parameter>")


def _read_function(text: str, tools: Sequence[ToolSpec] | None) -> ReadCall:
    head = _HEAD.match(text)
    name = head.group(1).strip() if head is not None else ""
    if head is None or not name:
        return ReadCall(text, error="the function has no name")
    body, closed, after = text[head.end() :].rpartition("</function>")
    if not closed:
        return ReadCall(text, error="</function> is missing")
    if after.strip():
        return ReadCall(text, error="there is text after </function>")
    arguments: dict[str, Any] = {}
    position = 0
    while body[position:].strip():
        match = _PARAMETER.match(body, position)
        if match is None:
            return ReadCall(text, error="there is text outside the parameters")
        key = match.group(1).strip()
        if not key or key in arguments:
            return ReadCall(text, error=f"parameter {key!r} is given twice" if key else "a parameter has no name")
        value = match.group(2).removeprefix("\n").removesuffix("\n")
        arguments[key] = coerce_text(value, parameter_schema(tools, name, key))
        position = match.end()
    return ReadCall(text, name, arguments)
