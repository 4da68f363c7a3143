"""The two tool-call formats of the Qwen family: JSON in tags (`hermes`) and XML-like functions (`qwen-xml`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from prl.contracts import CallView, PieceWriter, ReadCall
from prl.parse import is_inside_parameter, is_inside_string, read_functions, read_named_call, write_function
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
        return [read_named_call(region)]

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
            write_function(out, call, self._write_value)
            out.control(CLOSE)

    def is_inside_value(self, region: str) -> bool:
        """Whether a parameter is still open."""
        return is_inside_parameter(region)

    def read(self, region: str, tools: Sequence[ToolSpec] | None) -> list[ReadCall]:
        """Read the functions of a region."""
        return read_functions(region, tools)

    def trim_before(self, space: str) -> str:
        """Remove the blank line before the first call."""
        return space.removesuffix("\n\n")

    def _write_value(self, value: Any) -> str:
        if isinstance(value, str):
            return value
        if isinstance(value, dict | list | tuple):
            return dump_json(value)
        return self._scalar(value)


def create_hermes(options: HermesOptions) -> HermesCodec:
    """Create the `hermes` tool parser."""
    return HermesCodec()


def create_qwen_xml(options: QwenXmlOptions) -> QwenXmlCodec:
    """Create the `qwen-xml` tool parser."""
    return QwenXmlCodec(options.literals)
