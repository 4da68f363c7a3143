"""Kimi's tool calls: one section, in which each call has an id that names the function, and JSON arguments."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict

from prl.contracts import CallView, PieceWriter, ReadCall
from prl.parse import CallSyntaxError, is_inside_string, load_arguments
from prl.render import dump_json
from prl.types import ToolSpec

OPEN, CLOSE = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
BEGIN, ARGUMENT, END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
_PREFIX = "functions."
_STRING_OR_END = re.compile(r'"(?:[^"\\]|\\.)*"|' + re.escape(END), re.DOTALL)


class KimiToolOptions(BaseModel):
    """Options of the `kimi-k2` tool parser.

    call_ids: what is written for an id that does not name the call's function: "named" writes `functions.NAME:INDEX`
        instead, "template" writes it as it is, and the function's name nowhere.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    call_ids: Literal["template", "named"] = "named"


class _Found(NamedTuple):
    """A call as found in a section; `is_open` says that the section ends inside one of its strings."""

    call: ReadCall
    end: int
    is_open: bool = False


class KimiCodec:
    """A section of calls `functions.NAME:INDEX` with JSON arguments. Ids are written and read to the letter."""

    open = OPEN
    close = CLOSE
    spellings: ClassVar[Mapping[str, bool]] = {
        "<|tool_call_section_begin|>": True,
        "<|tool_call_section_end|>": False,
    }

    def __init__(self, call_ids: Literal["template", "named"] = "template") -> None:
        self._names_ids = call_ids == "named"

    def write(self, out: PieceWriter, calls: Sequence[CallView], *, after_text: bool) -> None:
        """Write one section; a caller's JSON string is written verbatim, and a missing id as nothing (the template)."""
        if not calls:
            return
        out.control(OPEN)
        for index, call in enumerate(calls):
            out.control(BEGIN)
            out.value(named_id(call, index) if self._names_ids else written_id(call.id))
            out.control(ARGUMENT)
            out.value(call.arguments if isinstance(call.arguments, str) else dump_json(call.arguments))
            out.control(END)
        out.control(CLOSE)

    def read(self, region: str, tools: Sequence[ToolSpec] | None) -> list[ReadCall]:
        """Read the calls of a section, in order; what stands outside calls is a malformed one."""
        calls = [found.call for found in _split(region, tools)]
        return calls or [ReadCall(region, error="the section holds no call")]

    def is_inside_value(self, region: str) -> bool:
        """Whether the section stands inside a JSON string."""
        return any(found.is_open for found in _split(region, None))

    def trim_before(self, space: str) -> str:
        """Keep the content to the letter: nothing stands between it and the section."""
        return space


def create_kimi(options: KimiToolOptions) -> KimiCodec:
    """Create the `kimi-k2` tool parser."""
    return KimiCodec(options.call_ids)


def written_id(call_id: object) -> str:
    """Return an id as the template writes it, a missing one as nothing."""
    return "" if call_id is None else str(call_id)


def named_id(call: CallView, index: int) -> str:
    """Return the call's id if it names its function, else one that does."""
    own = written_id(call.id)
    return own if function_name(own, None) == call.name else f"{_PREFIX}{call.name}:{index}"


def function_name(call_id: str, tools: Sequence[ToolSpec] | None) -> str:
    """Return the function an id names, "" where it names none.

    `functions.NAME:INDEX` is the vendor's form; the prefix may be missing, and white space may stand by the colon. An
    id with neither prefix nor index is a name only if a tool has it.
    """
    name, colon, index = call_id.rpartition(":")
    if not colon or not index.strip().isdecimal():
        name = call_id
        if not name.startswith(_PREFIX) and name not in _declared(tools):
            return ""
    return name.strip().removeprefix(_PREFIX)


def _declared(tools: Sequence[ToolSpec] | None) -> set[object]:
    specs = [tool.get("function", tool) for tool in tools or () if isinstance(tool, Mapping)]
    return {str(spec.get("name")) for spec in specs if isinstance(spec, Mapping)}


def _split(region: str, tools: Sequence[ToolSpec] | None) -> Iterator[_Found]:
    """Yield what a section holds, without loss."""
    position = 0
    while position < len(region):
        begin = region.find(BEGIN, position)
        stop = begin if begin >= 0 else len(region)
        if region[position:stop].strip():
            yield _Found(ReadCall(region[position:stop], error="there is text outside the calls"), stop)
        if begin < 0:
            return
        found = _take(region, begin, tools)
        yield found
        position = found.end


def _take(region: str, begin: int, tools: Sequence[ToolSpec] | None) -> _Found:
    """Read the call that begins at `begin`."""
    start = begin + len(BEGIN)
    argument = region.find(ARGUMENT, start)
    borders = [place for place in (region.find(BEGIN, start), region.find(END, start)) if place >= 0]
    if argument < 0 or any(place < argument for place in borders):
        stop = min(borders, default=len(region))
        stop += len(END) if region.startswith(END, stop) else 0
        return _Found(ReadCall(region[begin:stop], error=f"{ARGUMENT} is missing"), stop)
    call_id = region[start:argument].strip()
    start = argument + len(ARGUMENT)
    first = region.find(END, start)
    outside = next((m.start() for m in _STRING_OR_END.finditer(region, start) if m.group() == END), -1)
    if first < 0:
        rest = ReadCall(region[begin:], error=f"{END} is missing")
        return _Found(rest, len(region), is_open=is_inside_string(region[start:]))
    error = ""
    for end in sorted({first, outside} - {-1}, reverse=True):
        try:
            arguments = load_arguments(region[start:end])
        except CallSyntaxError as err:
            error = str(err)
            continue
        raw = region[begin : end + len(END)]
        name = function_name(call_id, tools)
        if not name:
            return _Found(ReadCall(raw, error=f"the call id {call_id!r} names no function"), end + len(END))
        return _Found(ReadCall(raw, name, arguments, id=call_id), end + len(END))
    stop = first + len(END)
    is_open = is_inside_string(region[start:first]) and is_inside_string(region[start:])
    return _Found(ReadCall(region[begin:stop], error=error), stop, is_open=is_open)
