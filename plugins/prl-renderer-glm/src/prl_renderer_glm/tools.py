"""GLM's tool-call format: a name, then pairs of `<arg_key>` and `<arg_value>`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from prl.contracts import CallView, PieceWriter, ReadCall
from prl.parse import coerce_text, parameter_schema
from prl.render import dump_json
from prl.types import ToolSpec

_ARGUMENT = re.compile(
    r"\s*<arg_key>((?:(?!</?arg_(?:key|value)>).)*)</arg_key>\s*"
    r"<arg_value>(.*?)</arg_value>(?=\s*(?:<arg_key>|\Z))",
    re.DOTALL,
)
_NEXT_VALUE = re.compile(r"</arg_key>\s*<arg_value>")
_NO_NAME = re.compile(r"[\s<>{}\"]")
"""What a function's name never holds: text that is no call must not become a call without arguments."""


class GlmOptions(BaseModel):
    """Options of the `glm` tool parser.

    line_feeds: whether names, keys and values stand on lines of their own when written (GLM-4.5 and 4.6; not from 4.7
    on). Reading takes both.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    line_feeds: bool = False


class GlmCodec:
    """`<tool_call>name<arg_key>k</arg_key><arg_value>v</arg_value></tool_call>`; strings bare, other values as JSON.

    A call cut off behind its name or a value looks whole, so the closing tag decides (`needs_close`).
    """

    open = "<tool_call>"
    close = "</tool_call>"
    needs_close = True

    def __init__(self, *, line_feeds: bool = False) -> None:
        self._gap = "\n" if line_feeds else ""

    def write(self, out: PieceWriter, calls: Sequence[CallView], *, after_text: bool) -> None:
        """Write calls whose arguments are mappings."""
        for call in calls:
            assert not isinstance(call.arguments, str), "the format decodes JSON strings before it writes calls"
            out.text(self._gap)
            out.control(self.open)
            out.value(call.name)
            out.text(self._gap)
            for key, value in call.arguments.items():
                out.control("<arg_key>")
                out.value(str(key))
                out.control("</arg_key>")
                out.text(self._gap)
                out.control("<arg_value>")
                out.value(value if isinstance(value, str) else dump_json(value))
                out.control("</arg_value>")
                out.text(self._gap)
            out.control(self.close)

    def is_inside_value(self, region: str) -> bool:
        """Whether a value is still open."""
        return region.count("<arg_value>") > region.count("</arg_value>")

    def read(self, region: str, tools: Sequence[ToolSpec] | None) -> list[ReadCall]:
        """Read the one call of a region; no argument at all is a call without arguments."""
        head, tag, _ = region.partition("<arg_key>")
        name = head.strip()
        if not name or _NO_NAME.search(name):
            return [ReadCall(region, error=f"{name!r} is no function name" if name else "the call has no name")]
        arguments: dict[str, Any] = {}
        position = len(head) if tag else len(region)
        while region[position:].strip():
            match = _ARGUMENT.match(region, position)
            if match is None:
                return [ReadCall(region, error="expected <arg_key>...</arg_key><arg_value>...</arg_value>")]
            key, value = match.group(1).strip(), match.group(2)
            if key in arguments:
                return [ReadCall(region, error=f"argument {key!r} is given twice")]
            if _NEXT_VALUE.search(value) and value.count("<arg_value>") != value.count("</arg_value>"):
                return [ReadCall(region, error=f"the value of argument {key!r} does not end before the next one")]
            arguments[key] = coerce_text(value, parameter_schema(tools, name, key))
            position = match.end()
        return [ReadCall(region, name, arguments)]

    def trim_before(self, space: str) -> str:
        """Remove the line feed before the first call."""
        return space.removesuffix(self._gap)


def create_glm(options: GlmOptions) -> GlmCodec:
    """Create the `glm` tool parser."""
    return GlmCodec(line_feeds=options.line_feeds)
