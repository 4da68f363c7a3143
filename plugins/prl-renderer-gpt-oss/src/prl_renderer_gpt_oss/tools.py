"""Calls in harmony: a message to a recipient, whose body is the arguments."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from prl.contracts import CallView
from prl.parse import CallSyntaxError, load_arguments
from prl.render import Writer, dump_json
from prl_renderer_gpt_oss.tokens import CHANNEL, CONSTRAIN, MESSAGE

_FUNCTIONS = "functions."
_PYTHON = "python"


class Address(NamedTuple):
    """Where a tool is called: the recipient, the channel, and whether it is one of the built-in tools."""

    recipient: str
    channel: str
    is_builtin: bool


def address_of(name: str, builtin_tools: Collection[str] = ()) -> Address:
    """Return a tool's address: functions live in a namespace, built-in tools are called while thinking."""
    if name.split(".")[0] in builtin_tools:
        return Address(name, "analysis", True)
    return Address(_FUNCTIONS + name, "commentary", False)


def write_call_header_and_body(out: Writer, call: CallView, address: Address) -> None:
    """Write a call after `assistant`, up to its end; a caller's JSON string is written verbatim."""
    out.text(" to=")
    out.value(address.recipient)
    out.control(CHANNEL)
    if address.is_builtin:
        out.text(f"{address.channel} code")
    else:
        out.text(f"{address.channel} ")
        out.control(CONSTRAIN)
        out.text("json")
    out.control(MESSAGE)
    arguments = call.arguments
    if address.is_builtin and call.name == _PYTHON and isinstance(arguments, dict) and _is_code(arguments):
        out.value(arguments["code"])
    else:
        out.value(arguments if isinstance(arguments, str) else dump_json(arguments))


def read_call(recipient: str, body: str) -> tuple[str, dict[str, Any] | None, str]:
    """Return a call's name, and its arguments or (None and) why they cannot be read. Never raises."""
    name = recipient.removeprefix(_FUNCTIONS)
    if not name:
        return "", None, "the call has no function name"
    try:
        return name, load_arguments(body), ""
    except CallSyntaxError as err:
        if recipient == _PYTHON and body.strip():
            return name, {"code": body}, ""  # the built-in tool takes code, not JSON
        return name, None, str(err)


def _is_code(arguments: dict[str, Any]) -> bool:
    return list(arguments) == ["code"] and isinstance(arguments["code"], str)
