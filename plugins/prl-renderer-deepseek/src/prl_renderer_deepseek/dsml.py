"""DSML, the tool-call format of V4: typed parameters, strings as they are."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, ClassVar, NoReturn

from prl.contracts import CallView, PieceWriter, ReadCall
from prl.parse import CallSyntaxError, coerce_text, load_value, parameter_schema
from prl.render import write_json
from prl.types import ToolSpec
from prl_renderer_deepseek.tokens import DSML
from prl_renderer_deepseek.tools import DeepSeekToolOptions

_INVOKE = re.compile(rf"\s*<{DSML}invoke name=\"([^\n]*?)\">\n?")
_END_INVOKE = f"</{DSML}invoke>"
_PARAMETER = re.compile(
    rf"\s*<{DSML}parameter name=\"([^\n]*?)\"(?: string=\"(true|false)\")?>"
    rf"(.*?)</{DSML}parameter>(?=\s*(?:<{DSML}parameter |\Z))",
    re.DOTALL,
)


class DsmlCodec:
    r"""`<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="k" string="true">v</...`."""

    open = f"<{DSML}tool_calls>"
    close = f"</{DSML}tool_calls>"
    spellings: ClassVar[Mapping[str, bool]] = {open: True, close: False}
    """The markers are several tokens, whatever else a vocabulary holds."""

    def write(self, out: PieceWriter, calls: Sequence[CallView], *, after_text: bool) -> None:
        """Write all calls of a turn, a blank line before them also where there is no content."""
        if not calls:
            return
        out.text("\n\n")
        self._tag(out, "<", "tool_calls>\n")
        for call in calls:
            self._tag(out, "<", 'invoke name="')
            out.value(call.name)
            out.text('">\n')
            for key, value in arguments_of(call).items():
                self._write_parameter(out, key, value)
            self._tag(out, "</", "invoke>\n")
        self._tag(out, "</", "tool_calls>")

    def _write_parameter(self, out: PieceWriter, key: str, value: Any) -> None:
        self._tag(out, "<", 'parameter name="')
        out.value(key)
        out.text(f'" string="{"true" if isinstance(value, str) else "false"}">')
        out.value(value if isinstance(value, str) else dump_value(value))
        self._tag(out, "</", "parameter>\n")

    def _tag(self, out: PieceWriter, before: str, after: str) -> None:
        out.text(before)
        out.control(DSML)
        out.text(after)

    def is_inside_value(self, region: str) -> bool:
        """Whether a parameter is still open."""
        return region.rfind(f"<{DSML}parameter ") > region.rfind(f"</{DSML}parameter>")

    def read(self, region: str, tools: Sequence[ToolSpec] | None) -> list[ReadCall]:
        """Read the calls of a region; the types are in the text, and in the schema where the text does not tell."""
        starts = [match.start() for match in _INVOKE.finditer(region) if _begins_call(region, match.start())]
        if not starts or region[: starts[0]].strip():
            return [ReadCall(region, error=f"expected <{DSML}invoke>")]
        ends = [*starts[1:], len(region)]
        return [_read(region[start:end], tools) for start, end in zip(starts, ends, strict=True)]

    def trim_before(self, space: str) -> str:
        """Remove the blank line before the calls."""
        return space.removesuffix("\n\n")


def arguments_of(call: CallView) -> dict[str, Any]:
    """Return a call's arguments; what is no JSON object becomes one parameter, as in the vendor's encoder."""
    if isinstance(call.arguments, dict):
        return call.arguments
    try:
        found = json.loads(call.arguments, parse_constant=_refuse)
        json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return {"arguments": call.arguments}
    return found if isinstance(found, dict) else {"arguments": call.arguments}


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def dump_value(value: Any) -> str:
    """Write JSON as the vendor's encoder does."""
    return write_json(value, _number)


def _number(value: float) -> str:
    """Write a number: as Python, but small ones plainly down to 1e-5 and without zeros before a short exponent."""
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        value = float(value)
    text = repr(value)
    mantissa, small, exponent = text.partition("e-")
    if not small:
        return text
    return format(Decimal(text), "f") if int(exponent) <= 5 else f"{mantissa}e-{int(exponent)}"


def _begins_call(region: str, place: int) -> bool:
    """Whether an opening tag stands between calls rather than inside a value."""
    before = region[:place]
    return before.count(f"<{DSML}parameter ") <= before.count(f"</{DSML}parameter>")


def _read(text: str, tools: Sequence[ToolSpec] | None) -> ReadCall:
    head = _INVOKE.match(text)
    name = head.group(1).strip() if head is not None else ""
    if head is None or not name:
        return ReadCall(text, error="the call has no function name")
    body, closed, after = text[head.end() :].rpartition(_END_INVOKE)
    if not closed or after.strip():
        return ReadCall(text, error=f"there is text after {_END_INVOKE}" if closed else f"{_END_INVOKE} is missing")
    arguments: dict[str, Any] = {}
    position = 0
    while body[position:].strip():
        match = _PARAMETER.match(body, position)
        if match is None:
            return ReadCall(text, error="there is text outside the parameters")
        key, is_text, value = match.groups()
        if key in arguments:
            return ReadCall(text, error=f"parameter {key!r} is given twice")
        try:
            arguments[key] = value if is_text == "true" else _typed(value, is_text, parameter_schema(tools, name, key))
        except CallSyntaxError as err:
            return ReadCall(text, error=f"parameter {key!r}: {err}")
        position = match.end()
    return ReadCall(text, name, arguments)


def _typed(text: str, is_text: str | None, schema: Mapping[str, Any] | None) -> Any:
    """Read a value that is JSON, or of which the text does not tell what it is; the schema helps where it can."""
    if is_text is None:
        return text if schema is None else coerce_text(text, schema)
    try:
        return load_value(text)
    except CallSyntaxError:
        value = coerce_text(text, schema)
        if isinstance(value, str):
            raise
        return value


def create_dsml(options: DeepSeekToolOptions) -> DsmlCodec:
    """Create the `dsml` tool parser."""
    return DsmlCodec()
