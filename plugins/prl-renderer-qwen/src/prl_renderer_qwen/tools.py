"""The two tool-call formats of the Qwen family: JSON in tags (`hermes`) and XML-like functions (`qwen-xml`)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from prl.contracts import CallView, PieceWriter, ReadCall
from prl.parse import CallSyntaxError, coerce_text, is_inside_string, load_object, parameter_schema
from prl.render import dump_json
from prl.types import ToolSpec

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class HermesOptions(BaseModel):
    """Options of the `hermes` tool parser: none."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class QwenXmlOptions(BaseModel):
    """Options of the `qwen-xml` tool parser.

    literals: how scalars other than strings are written: "python" (`True`, `None`: Qwen3.5) or "json" (`true`: Qwen3.6,
    Qwen3-Coder). Reading takes both.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    literals: Literal["python", "json"] = "json"


class HermesCodec:
    r"""`<tool_call>\n{"name": ..., "arguments": {...}}\n</tool_call>`, calls separated by a line feed."""

    open = OPEN
    close = CLOSE

    def write(self, out: PieceWriter, calls: Sequence[CallView], *, after_text: bool) -> None:
        """Write calls; a caller's JSON string is written verbatim, as the template does."""
        for n, call in enumerate(calls):
            if n or after_text:
                out.text("\n")
            arguments = call.arguments if isinstance(call.arguments, str) else dump_json(call.arguments)
            out.control(OPEN)
            out.text('\n{"name": "')
            out.value(call.name)
            out.text('", "arguments": ')
            out.value(arguments)
            out.text("}\n")
            out.control(CLOSE)

    def is_inside_value(self, region: str) -> bool:
        """Whether the JSON stands inside a string."""
        return is_inside_string(region)

    def read(self, region: str, tools: Sequence[ToolSpec] | None) -> list[ReadCall]:
        """Read the one call of a region."""
        try:
            name, arguments = _named_call(load_object(region))
        except CallSyntaxError as err:
            return [ReadCall(region, error=str(err))]
        return [ReadCall(region, name, arguments)]

    def trim_before(self, space: str) -> str:
        """Remove the line feed before the first call."""
        return space.removesuffix("\n")


class QwenXmlCodec:
    r"""`<tool_call>\n<function=name>\n<parameter=key>\nvalue\n</parameter>\n</function>\n</tool_call>`.

    Strings stand as they are, mappings and lists as JSON, other scalars as Python or JSON writes them.
    """

    open = OPEN
    close = CLOSE

    def __init__(self, literals: Literal["python", "json"] = "json") -> None:
        self._scalar: Callable[[Any], str] = str if literals == "python" else dump_json

    def write(self, out: PieceWriter, calls: Sequence[CallView], *, after_text: bool) -> None:
        """Write calls whose arguments are mappings."""
        for n, call in enumerate(calls):
            if n or after_text:
                out.text("\n" if n else "\n\n")
            out.control(OPEN)
            out.text("\n<function=")
            out.value(call.name)
            out.text(">\n")
            assert not isinstance(call.arguments, str), "the format decodes JSON strings before it writes calls"
            for key, value in call.arguments.items():
                out.text("<parameter=")
                out.value(key)
                out.text(">\n")
                out.value(self._write_value(value))
                out.text("\n</parameter>\n")
            out.text("</function>\n")
            out.control(CLOSE)

    def is_inside_value(self, region: str) -> bool:
        """Whether a parameter is still open."""
        return region.rfind("<parameter=") > region.rfind("</parameter>")

    def read(self, region: str, tools: Sequence[ToolSpec] | None) -> list[ReadCall]:
        """Read the functions of a region."""
        starts = [match.start() for match in _FUNCTION.finditer(region)]
        if not starts or region[: starts[0]].strip():
            return [ReadCall(region, error="expected <function=name>")]
        ends = [*starts[1:], len(region)]
        return [_read_function(region[start:end], tools) for start, end in zip(starts, ends, strict=True)]

    def trim_before(self, space: str) -> str:
        """Remove the blank line before the first call."""
        return space.removesuffix("\n\n")

    def _write_value(self, value: Any) -> str:
        if isinstance(value, str):
            return value
        if isinstance(value, dict | list | tuple):
            return dump_json(value)
        return self._scalar(value)


_FUNCTION = re.compile(r"(?:^|(?<=</function>))\s*<function=")
_HEAD = re.compile(r"\s*<function=([^>\n]*)>")
_PARAMETER = re.compile(
    r"\s*<parameter=([^>\n]*)>(.*?)(?:</parameter>(?=\s*(?:<parameter=|\Z))|(?=\n<parameter=)|\Z)", re.DOTALL
)


def create_hermes(options: HermesOptions) -> HermesCodec:
    """Create the `hermes` tool parser."""
    return HermesCodec()


def create_qwen_xml(options: QwenXmlOptions) -> QwenXmlCodec:
    """Create the `qwen-xml` tool parser."""
    return QwenXmlCodec(options.literals)


def _named_call(call: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return name and arguments of a JSON call; arguments may be an object or the JSON string of one."""
    name = call.get("name")
    if not isinstance(name, str) or not name:
        raise CallSyntaxError("the call has no function name")
    if "arguments" not in call:
        raise CallSyntaxError("the call has no arguments")
    arguments = call["arguments"]
    if isinstance(arguments, str):
        arguments = load_object(arguments)
    if not isinstance(arguments, dict):
        raise CallSyntaxError(f"the arguments are a JSON {type(arguments).__name__}, not an object")
    return name, arguments


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
