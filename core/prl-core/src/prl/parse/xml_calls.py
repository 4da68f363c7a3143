"""Calls written as nested tags: `<function=name><parameter=key>value</parameter></function>` and its like."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from prl.contracts import CallView, PieceWriter, ReadCall
from prl.parse.schema import coerce_text, parameter_schema
from prl.types import ToolSpec

_NAME = r"([^\n]*?)"


@dataclass(frozen=True, kw_only=True)
class TaggedCalls:
    """Reads the calls of one set of tags.

    function, parameter: the opening tags, as the text before and after the name.
    function_end, parameter_end: the closing tags.
    line_feeds: whether a value stands between line feeds of the format.
    may_omit_end: whether a parameter may end where the next one begins on a new line, as Qwen's models sometimes write.
        One with a closing tag of its own is text inside a value.
    """

    function: tuple[str, str]
    parameter: tuple[str, str]
    function_end: str
    parameter_end: str
    line_feeds: bool = False
    may_omit_end: bool = False

    def read(self, region: str, tools: Sequence[ToolSpec] | None) -> list[ReadCall]:
        """Read all functions of a region; values take the types that the tool's schema declares. Never raises."""
        found = (match.start() for match in self._function.finditer(region))
        starts = [start for start in found if self.may_omit_end or not self.is_inside_parameter(region[:start])]
        if not starts or region[: starts[0]].strip():
            return [ReadCall(region, error=f"expected {'name'.join(self.function)}")]
        ends = [*starts[1:], len(region)]
        return [self._read_function(region[start:end], tools) for start, end in zip(starts, ends, strict=True)]

    def is_inside_parameter(self, region: str) -> bool:
        """Whether a parameter is still open, so that what follows may belong to its value."""
        return region.count(self.parameter[0]) > region.count(self.parameter_end)

    def _read_function(self, text: str, tools: Sequence[ToolSpec] | None) -> ReadCall:
        head = self._head.match(text)
        name = head.group(1).strip() if head is not None else ""
        if head is None or not name:
            return ReadCall(text, error="the function has no name")
        body, closed, after = text[head.end() :].rpartition(self.function_end)
        if not closed:
            return ReadCall(text, error=f"{self.function_end} is missing")
        if after.strip():
            return ReadCall(text, error=f"there is text after {self.function_end}")
        pairs = self._parameters(body)
        if pairs is None:
            return ReadCall(text, error="there is text outside the parameters")
        arguments: dict[str, Any] = {}
        for key, value in pairs:
            if not key or key in arguments:
                return ReadCall(text, error=f"parameter {key!r} is given twice" if key else "a parameter has no name")
            if self.line_feeds:
                value = value.removeprefix("\n").removesuffix("\n")
            arguments[key] = coerce_text(value, parameter_schema(tools, name, key))
        return ReadCall(text, name, arguments)

    def _parameters(self, body: str) -> list[tuple[str, str]] | None:
        """Return names and values, None where there is text outside them."""
        pairs = _split(body, self._closed_parameter)
        if not self.may_omit_end:
            return pairs
        opening, end = self.parameter[0], self.parameter_end
        if pairs is not None and all(value.count(opening) == value.count(end) for _, value in pairs):
            return pairs
        return _split(body, self._open_parameter)

    @cached_property
    def _function(self) -> re.Pattern[str]:
        return re.compile(rf"(?:^|(?<={re.escape(self.function_end)}))\s*{re.escape(self.function[0])}")

    @cached_property
    def _head(self) -> re.Pattern[str]:
        return re.compile(rf"\s*{_NAME.join(map(re.escape, self.function))}")

    @cached_property
    def _closed_parameter(self) -> re.Pattern[str]:
        return self._parameter("{end}")

    @cached_property
    def _open_parameter(self) -> re.Pattern[str]:
        return self._parameter(r"(?:{end}|(?=\n{opening})|\Z)")

    def _parameter(self, form: str) -> re.Pattern[str]:
        opening = re.escape(self.parameter[0])
        end = rf"{re.escape(self.parameter_end)}(?=\s*(?:{opening}|\Z))"
        end = form.format(end=end, opening=opening)
        # atomic: a name ends at its first closing, so that what is no parameter is not read once for each later one
        head = rf"(?>{_NAME.join(map(re.escape, self.parameter))})"
        return re.compile(rf"\s*{head}(.*?){end}", re.DOTALL)


def _split(body: str, parameter: re.Pattern[str]) -> list[tuple[str, str]] | None:
    """Return the names and values of parameters that stand one behind the other, None where other text does."""
    pairs: list[tuple[str, str]] = []
    position = 0
    while body[position:].strip():
        match = parameter.match(body, position)
        if match is None:
            return None
        pairs.append((match.group(1).strip(), match.group(2)))
        position = match.end()
    return pairs


_FUNCTIONS = TaggedCalls(
    function=("<function=", ">"),
    parameter=("<parameter=", ">"),
    function_end="</function>",
    parameter_end="</parameter>",
    line_feeds=True,
    may_omit_end=True,
)
"""The tags of Qwen3-Coder, Qwen3.5 and Nemotron-3."""

read_functions = _FUNCTIONS.read
is_inside_parameter = _FUNCTIONS.is_inside_parameter


def write_function(out: PieceWriter, call: CallView, write_value: Callable[[Any], str]) -> None:
    """Write one call whose arguments are a mapping, from the line feed before its function to the one behind."""
    assert not isinstance(call.arguments, str), "the format decodes JSON strings before it writes calls"
    out.text("\n<function=")
    out.value(call.name)
    out.text(">\n")
    for key, value in call.arguments.items():
        out.text("<parameter=")
        out.value(str(key))
        out.text(">\n")
        out.value(write_value(value))
        out.text("\n</parameter>\n")
    out.text("</function>\n")
