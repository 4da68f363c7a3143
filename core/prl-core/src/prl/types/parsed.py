"""What a renderer reads back out of sampled ids."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Literal

from .messages import Message


@dataclass(frozen=True, slots=True)
class ParsedToolCall:
    """A well-formed call; `span` is its token range in the completion (`start <= i < end`)."""

    id: str
    name: str
    arguments: dict[str, Any]
    span: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class InvalidToolCall:
    """A call that could not be read: kept verbatim, never executed as an empty call."""

    raw: str
    error: str
    span: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class ParsedResponse:
    """An assistant turn read from its token ids.

    `reasoning_content` is None where the model did not reason. `reasoning_complete` is False where the completion
    ended inside the reasoning.
    """

    content: str
    reasoning_content: str | None = None
    tool_calls: tuple[ParsedToolCall, ...] = ()
    invalid_tool_calls: tuple[InvalidToolCall, ...] = ()
    reasoning_complete: bool = True

    def to_message(self) -> Message:
        """Return the OpenAI-format assistant message; invalid calls stay as text at the end of the content.

        Arguments are mappings, so that a template which wants either form gets what it can render.
        """
        content = self.content + "".join(call.raw for call in self.invalid_tool_calls)
        message: Message = {"role": "assistant", "content": content}
        if self.reasoning_content is not None:
            message["reasoning_content"] = self.reasoning_content
        if self.tool_calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in self.tool_calls
            ]
        return message


@dataclass(frozen=True, slots=True)
class ParseDelta:
    """One step of a streaming parse; concatenated deltas equal the final message.

    Text kinds carry `text`; a call arrives whole when its end was seen.
    """

    kind: Literal["reasoning", "content", "tool_call", "invalid_tool_call"]
    text: str = ""
    call: ParsedToolCall | InvalidToolCall | None = field(default=None)


def arguments_json(call: ParsedToolCall) -> str:
    """Return the call's arguments as the JSON string of the OpenAI wire form."""
    return json.dumps(call.arguments, ensure_ascii=False)
