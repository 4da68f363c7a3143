"""The tool-call formats of V3 and R1 (JSON in a code fence) and of V3.1 (bare JSON), in the same control tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from pydantic import BaseModel, ConfigDict

from prl.contracts import CallView, PieceWriter, ReadCall
from prl.parse import CallSyntaxError, is_inside_string, load_arguments
from prl.render import dump_json
from prl.types import ToolSpec
from prl_renderer_deepseek.tokens import CALL, CALLS, END_CALL, END_CALLS, SEPARATOR

_MAX_MARKERS = 8
"""Call markers in one value, at most."""
_FENCED = re.compile(r"([^\n]*)\n```(?:json)?\n(.*?)(?:\n```)?\s*\Z", re.DOTALL)


class DeepSeekToolOptions(BaseModel):
    """Options of the DeepSeek tool parsers: none."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class InlineCodec:
    """`<｜tool▁call▁begin｜>name<｜tool▁sep｜>{...}<｜tool▁call▁end｜>` (V3.1); reads the fenced form too."""

    open = CALLS
    close = END_CALLS

    def write(self, out: PieceWriter, calls: Sequence[CallView], *, after_text: bool) -> None:
        """Write calls; a caller's JSON string is written verbatim, as the template does."""
        if not calls:
            return
        out.control(CALLS)
        for n, call in enumerate(calls):
            self.write_call(out, call, first=n == 0)
        out.control(END_CALLS)

    def write_call(self, out: PieceWriter, call: CallView, *, first: bool) -> None:
        """Write one call."""
        out.control(CALL)
        out.value(call.name)
        out.control(SEPARATOR)
        out.value(arguments_text(call))
        out.control(END_CALL)

    def is_inside_value(self, region: str) -> bool:
        """Whether the JSON of the last call stands inside a string."""
        return _is_open(region.rpartition(CALL)[2]) or is_inside_string(region.rpartition(SEPARATOR)[2])

    def read(self, region: str, tools: Sequence[ToolSpec] | None) -> list[ReadCall]:
        """Read the calls of a region."""
        return list(_read_all(region.split(CALL))) or [ReadCall(region, error="the block holds no call")]

    def trim_before(self, space: str) -> str:
        """Nothing stands between content and calls."""
        return space


class FencedCodec(InlineCodec):
    r"""`<｜tool▁call▁begin｜>function<｜tool▁sep｜>name\n```json\n{...}\n```<｜tool▁call▁end｜>` (V3, R1)."""

    def write_call(self, out: PieceWriter, call: CallView, *, first: bool) -> None:
        """Write one call; a line feed separates it from the one before."""
        if not first:
            out.text("\n")
        out.control(CALL)
        out.text("function")
        out.control(SEPARATOR)
        out.value(call.name)
        out.text("\n```json\n")
        out.value(arguments_text(call))
        out.text("\n```")
        out.control(END_CALL)


def arguments_text(call: CallView) -> str:
    """Return a call's arguments as text."""
    return call.arguments if isinstance(call.arguments, str) else dump_json(call.arguments)


def _read_all(parts: Sequence[str]) -> Iterator[ReadCall]:
    """Read what stands behind each `<｜tool▁call▁begin｜>`, some of which may be text in a value."""
    place = 0
    while place < len(parts):
        text, end = parts[place], place + 1
        if not text.strip():
            place = end
            continue
        call = _read(text)
        while call.arguments is None and end < len(parts) and end - place < _MAX_MARKERS and _is_open(text):
            text, end = text + CALL + parts[end], end + 1
            call = _read(text)
        if call.arguments is None:
            call, end = _read(parts[place]), place + 1
        yield call
        place = end


def _is_open(text: str) -> bool:
    return is_inside_string(text.partition(SEPARATOR)[2])


def _read(text: str) -> ReadCall:
    """Read one call; a closing marker in a value is text."""
    body, closed, after = text.rpartition(END_CALL)
    if not closed:
        body, after = text, ""
    head, separator, tail = body.partition(SEPARATOR)
    if not separator:
        return ReadCall(CALL + text, error=f"{SEPARATOR} is missing")
    if after.strip():
        return ReadCall(CALL + text, error=f"there is text after {END_CALL}")
    fenced = _FENCED.fullmatch(tail)
    name, arguments = fenced.groups() if fenced is not None else (head, tail)
    if not name.strip():
        return ReadCall(CALL + text, error="the call has no function name")
    try:
        return ReadCall(CALL + text, name.strip(), load_arguments(arguments))
    except CallSyntaxError as err:
        return ReadCall(CALL + text, error=str(err))


def create_fenced(options: DeepSeekToolOptions) -> FencedCodec:
    """Create the `deepseek-v3` tool parser."""
    return FencedCodec()


def create_inline(options: DeepSeekToolOptions) -> InlineCodec:
    """Create the `deepseek-v3.1` tool parser."""
    return InlineCodec()
