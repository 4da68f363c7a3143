"""OpenAI-format chat messages and tools, as clients really send them."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict


class FunctionCall(TypedDict):
    """A call's name and arguments: a mapping, or the JSON string of the OpenAI wire form."""

    name: str
    arguments: dict[str, Any] | str


class ToolCall(TypedDict):
    """One tool call of an assistant message."""

    function: FunctionCall
    id: NotRequired[str]
    type: NotRequired[str]


class Message(TypedDict):
    """One chat message.

    `content` is text, null, or a list of parts (`{"type": "text", "text": ...}`, images where a family allows them).
    `reasoning` and `reasoning_content` are two spellings of one field.
    """

    role: str
    content: NotRequired[str | list[dict[str, Any]] | None]
    reasoning_content: NotRequired[str | None]
    reasoning: NotRequired[str | None]
    tool_calls: NotRequired[list[ToolCall] | None]
    tool_call_id: NotRequired[str | None]
    name: NotRequired[str | None]


ToolSpec = dict[str, Any]
"""A tool in OpenAI form: `{"type": "function", "function": {"name", "description", "parameters"}}`."""
