"""What checks render: a few conversations whose every body can be told apart."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from prl.types import Message, ToolSpec

SYSTEM = "Answer like a quartz clock."
ASK = "Where's the amber museum?"
SAY = "It's in Gdansk, near the cobalt bridge."
ASK_AGAIN = "Don't they open the opal one?"
SAY_AGAIN = "Yes, beside the jade market."
THOUGHT = "They want the ivory gate."
RESULT = "Indigo sky, 7 degrees."
NAME = "get_weather"
PLACE = "Val-d'Isère"
ARGUMENTS: dict[str, Any] = {"city": PLACE, "days": 3, "metric": True}
TOOL: ToolSpec = {
    "type": "function",
    "function": {
        "name": NAME,
        "description": "Tell the weather.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "A place."},
                "days": {"type": "integer", "description": "How many."},
                "metric": {"type": "boolean", "description": "Celsius or not."},
            },
            "required": ["city"],
        },
    },
}
_JSON_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}


def system(text: str = SYSTEM) -> Message:
    """Return a system message."""
    return {"role": "system", "content": text}


def user(text: str = ASK) -> Message:
    """Return a user message."""
    return {"role": "user", "content": text}


def assistant(text: str = SAY, **more: Any) -> Message:
    """Return an assistant message."""
    message: dict[str, Any] = {"role": "assistant", "content": text, **more}
    return message  # type: ignore[return-value]


def call(number: int = 1, *, name: str = NAME, arguments: Any = None) -> dict[str, Any]:
    """Return a tool call with the probe's arguments."""
    given = dict(ARGUMENTS) if arguments is None else arguments
    return {"id": call_id(name, number), "type": "function", "function": {"name": name, "arguments": given}}


def call_id(name: str, number: int) -> str:
    """Return a call's id, in the one form that a family reads something into (Kimi: the function's name)."""
    return f"functions.{name}:{number - 1}"


def calling(text: str = "", *calls: dict[str, Any], **more: Any) -> Message:
    """Return an assistant message with tool calls, one where none is given."""
    return assistant(text, tool_calls=list(calls) or [call()], **more)


def result(text: str = RESULT, number: int = 1) -> Message:
    """Return a tool's answer."""
    return {"role": "tool", "tool_call_id": call_id(NAME, number), "name": NAME, "content": text}


def schema_of(message: Mapping[str, Any]) -> list[ToolSpec]:
    """Describe the calls' arguments by their own types: what an untyped format needs to give them back."""
    return [
        {
            "type": "function",
            "function": {
                "name": one["function"]["name"],
                "parameters": {
                    "type": "object",
                    "properties": {
                        key: {"type": _JSON_TYPES.get(type(value), "null")}
                        for key, value in as_mapping(one["function"]["arguments"]).items()
                    },
                },
            },
        }
        for one in message.get("tool_calls") or ()
    ]


def as_mapping(arguments: Any) -> dict[str, Any]:
    """Return arguments as a mapping, decoding the wire form."""
    return dict(json.loads(arguments) if isinstance(arguments, str) else arguments)


def typed(value: Any) -> Any:
    """Return a value in which 1, 1.0 and True differ."""
    if isinstance(value, Mapping):
        return {key: typed(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [typed(inner) for inner in value]
    return type(value).__name__, value


def flat(text: str) -> str:
    """Return text without white space and in lower case: what survives any template's layout."""
    return "".join(text.split()).lower()


def text_of(message: Mapping[str, Any]) -> str:
    """Return a message's body as one text."""
    content = message.get("content")
    if isinstance(content, Sequence) and not isinstance(content, str):
        return "".join(part["text"] for part in content)
    return content or ""


def tools_for(messages: Sequence[Mapping[str, Any]]) -> list[ToolSpec] | None:
    """Return the tools that a conversation needs: none where nothing is called."""
    return [TOOL] if any(message.get("tool_calls") for message in messages) else None
