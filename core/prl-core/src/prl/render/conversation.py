"""A conversation as renderers see it: the caller's messages, checked and brought to one shape."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from prl.contracts import CallView
from prl.parse import Grammar
from prl.types import Message, RenderError, ToolSpec

REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking")

_KINDS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "thinking": "reasoning",
    "reasoning": "reasoning",
    "image": "image",
    "image_url": "image",
    "input_image": "image",
    "video": "video",
    "video_url": "video",
}
"""What a part's type says. A part without one is told by its first key that has a value."""

_encode_json = json.JSONEncoder(ensure_ascii=False).encode


class Part(NamedTuple):
    """One part of a message's content: `kind` is "text", "image", "video", or "reasoning" until a view is made."""

    kind: str
    text: str = ""


@dataclass(slots=True)
class MessageView:
    """One message in one shape.

    `content` is the flattened text, None where the caller sent null or nothing. `parts` is set only where the content
    has images or videos. `reasoning` is None where absent ("" is a value). `index` is the place in the caller's list.
    """

    index: int
    role: str
    content: str | None = None
    parts: tuple[Part, ...] | None = None
    reasoning: str | None = None
    calls: tuple[CallView, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None

    @property
    def text(self) -> str:
        """The flattened text, "" where there is none."""
        return self.content or ""

    def mapped_calls(self) -> list[CallView]:
        """Return the calls with mappings as arguments; a JSON string that is no object is a `RenderError`."""
        return [call._replace(arguments=mapping_arguments(call, self.index)) for call in self.calls]


class SampledTurn(NamedTuple):
    """What a bridge extends: the prompt's ids and those sampled after it, which `grammar` can read.

    `stop` is the control token that ended the turn, None where it was cut off.
    """

    prompt_ids: Sequence[int]
    completion_ids: Sequence[int]
    stop: str | None
    grammar: Grammar

    def holds_reasoning(self, placeholder: Sequence[str] = ()) -> bool:
        """Whether the ids hold reasoning markers that are not part of `placeholder`, a sequence of such markers."""
        markers = self.grammar.reasoning_ids
        if not any(marker in self.completion_ids or marker in self.prompt_ids for marker in markers):
            return False
        expected = [token for name in placeholder for token in markers if self.grammar.marks[token][1] == name]
        ids = [*self.prompt_ids, *self.completion_ids]
        end = 0
        for place in [place for place, token in enumerate(ids) if token in markers]:
            if place < end:
                continue
            end = place + len(expected)
            if not expected or ids[place:end] != expected:
                return True
        return False


@dataclass(slots=True)
class Conversation:
    """What a format writes from.

    `new` (`messages[first:]`) is written. In a bridge `is_bridge` is True, `messages[first - 1]` stands for the sampled
    turn, what came before it may be unknown, and `sampled` holds the ids. `has_prompt` says whether a generation
    prompt follows the last message. `memo` is scratch space for facts a format computes once per conversation.
    """

    messages: list[MessageView]
    tools: Sequence[ToolSpec] | None = None
    first: int = 0
    is_bridge: bool = False
    sampled: SampledTurn | None = None
    has_prompt: bool = False
    memo: dict[str, Any] = field(default_factory=dict)

    @property
    def new(self) -> list[MessageView]:
        """The messages that are written: all of them in a render, what follows the sampled turn in a bridge."""
        return self.messages[self.first :]

    def role(self, position: int) -> str:
        """The role at a position, "" outside the conversation."""
        return self.messages[position].role if 0 <= position < len(self.messages) else ""


def view_messages(messages: Sequence[Message], *, start: int = 0) -> list[MessageView]:
    """Check and view the caller's messages; indices begin at `start`. Nothing is mutated."""
    _refuse_other(messages, "messages", "give a list of messages, such as [{'role': 'user', 'content': 'Hi'}]")
    return [view_message(message, start + i) for i, message in enumerate(messages)]


def view_tools(tools: Sequence[ToolSpec] | None) -> Sequence[ToolSpec] | None:
    """Check the caller's tools; None where there are none. What is no tool would be written as if it were one."""
    if not tools:
        return None
    advice = "give a list of tools, such as [{'type': 'function', 'function': {'name': ...}}]"
    _refuse_other(tools, "tools", advice)
    for index, tool in enumerate(tools):
        if not isinstance(tool, Mapping):
            raise RenderError(f"tool {index} is a {type(tool).__name__}", where=f"tools[{index}]", next_step=advice)
    return tools


def _refuse_other(values: Any, name: str, advice: str) -> None:
    """Raise `RenderError` for what is no list, though some of it could be walked through like one."""
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise RenderError(f"{name} is a {type(values).__name__}, not a list", where=name, next_step=advice)


def view_message(message: Mapping[str, Any], index: int) -> MessageView:
    """Bring one message to one shape, or raise `RenderError` with its index."""
    role = message.get("role") if type(message) is dict or isinstance(message, Mapping) else None
    if not isinstance(role, str) or not role:
        raise bad_message(index, "has no role", "give each message a `role` such as user, assistant, system or tool")
    content = message.get("content")
    parts: tuple[Part, ...] | None = None
    thought: str | None = None
    if content is not None and not isinstance(content, str):
        content, parts, thought = _flatten(content, index)
    view = MessageView(index, role, content, parts)
    if role == "assistant":
        view.reasoning = _reasoning(message, index, thought)
        calls = message.get("tool_calls")
        if calls:
            if type(calls) is not list and (not isinstance(calls, Sequence) or isinstance(calls, str)):
                raise bad_message(index, f"has tool_calls of type {type(calls).__name__}", "send a list of calls")
            view.calls = tuple([_call(call, index, n) for n, call in enumerate(calls)])
        elif message.get("function_call"):
            raise bad_message(index, "has a function_call, the form before tool_calls", "send it as tool_calls")
    elif thought is not None:
        raise bad_message(index, f"is a {role} message with a part of reasoning", "only assistant messages reason")
    elif role == "tool":
        view.tool_call_id = message.get("tool_call_id")
    view.name = message.get("name")
    return view


def bad_message(index: int, problem: str, next_step: str) -> RenderError:
    """Return a `RenderError` for the caller's message `index`."""
    return RenderError(f"message {index} {problem}", where=f"messages[{index}]", next_step=next_step)


def refuse_media(renderer: str, views: Sequence[MessageView], placed: Collection[str] = ()) -> None:
    """Raise `RenderError` for a content part that is neither text nor of a kind that the renderer can place."""
    for view in views:
        for part in view.parts or ():
            if part.kind != "text" and part.kind not in placed:
                raise bad_message(
                    view.index,
                    f"holds a part of kind {part.kind!r}, which renderer {renderer!r} cannot place",
                    "use the family's vision renderer, or send text only",
                )


def mapping_arguments(call: CallView, index: int) -> dict[str, Any]:
    """Return a call's arguments as a mapping, decoding the JSON string of the OpenAI wire form."""
    if isinstance(call.arguments, dict):
        return call.arguments
    try:
        value = json.loads(call.arguments)
    except ValueError as err:
        raise bad_message(
            index,
            f"has a call to {call.name!r} whose arguments are not valid JSON ({err})",
            "send the arguments as a mapping or as a JSON object in a string",
        ) from err
    if not isinstance(value, dict):
        raise bad_message(
            index,
            f"has a call to {call.name!r} whose arguments are a JSON {type(value).__name__}, not an object",
            "send the arguments as a mapping or as a JSON object in a string",
        )
    return value


def dump_json(value: Any, index: int = -1) -> str:
    """Write JSON as the vendors' templates do: non-ASCII kept, default separators (transformers' `tojson` filter)."""
    try:
        return _encode_json(value)
    except (TypeError, ValueError) as err:
        where = f"messages[{index}]" if index >= 0 else "tools"
        raise RenderError(
            f"a value cannot be written as JSON: {err}",
            where=where,
            next_step="use only JSON types in tools and arguments",
        ) from err


def _flatten(content: Any, index: int) -> tuple[str, tuple[Part, ...] | None, str | None]:
    """Return the text of parts, the parts where there are media among them, and their reasoning."""
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        raise bad_message(
            index,
            f"has content of type {type(content).__name__}",
            "send text, null, or a list of {'type': 'text', ...} parts",
        )
    found = [_part(item, index, n) for n, item in enumerate(content)]
    parts = [part for part in found if part.kind != "reasoning"]
    thoughts = [part.text for part in found if part.kind == "reasoning"]
    text = "".join(part.text for part in parts)
    has_media = any(part.kind != "text" for part in parts)
    return text, _join_text(parts) if has_media else None, "".join(thoughts) if thoughts else None


def _join_text(parts: Sequence[Part]) -> tuple[Part, ...]:
    """Join adjacent text parts."""
    joined: list[Part] = []
    for part in parts:
        if joined and part.kind == joined[-1].kind == "text":
            joined[-1] = Part("text", joined[-1].text + part.text)
        else:
            joined.append(part)
    return tuple(joined)


def _part(item: Any, index: int, n: int) -> Part:
    if isinstance(item, str):
        return Part("text", item)
    if isinstance(item, Mapping):
        given = item.get("type")
        is_known = isinstance(given, str) and given in _KINDS
        key = str(given) if is_known else next((key for key in _KINDS if item.get(key) is not None), "")
        kind = _KINDS.get(key, "")
        if kind in ("image", "video"):
            return Part(kind)
        text = item.get("text") if item.get(key) is None else item[key]
        if kind and isinstance(text, str):
            return Part(kind, text)
    raise bad_message(
        index,
        f"has a content part {n} that is neither text, reasoning, image nor video",
        "send parts such as {'type': 'text', 'text': ...}; nothing is dropped silently",
    )


def _reasoning(message: Mapping[str, Any], index: int, thought: str | None) -> str | None:
    """Return the reasoning, wherever it stands; an empty field says nothing beside a filled one."""
    found = {name: message[name] for name in REASONING_FIELDS if message.get(name) is not None}
    if thought is not None:
        found["content"] = thought
    for name, value in found.items():
        if not isinstance(value, str):
            raise bad_message(index, f"has `{name}` that is not text", "send reasoning as a string or null")
    found = {name: value for name, value in found.items() if value} or found
    if len(set(found.values())) > 1:
        raise bad_message(
            index,
            f"has different reasoning in {' and '.join(found)}",
            "send one of the fields, or the same text in both",
        )
    return next(iter(found.values()), None)


def _call(call: Any, index: int, n: int) -> CallView:
    function: Any = (call.get("function") or call) if type(call) is dict or isinstance(call, Mapping) else None
    is_mapping = type(function) is dict or isinstance(function, Mapping)
    if not is_mapping or not isinstance(function.get("name"), str):
        raise bad_message(
            index,
            f"has a tool call {n} without a function name",
            "send calls as {'function': {'name': ..., 'arguments': ...}}",
        )
    arguments = function.get("arguments")
    if arguments is None or arguments == "":
        arguments = {}
    if not isinstance(arguments, (str, dict)):
        if not isinstance(arguments, Mapping):
            raise bad_message(
                index,
                f"has a tool call {n} whose arguments are of type {type(arguments).__name__}",
                "send the arguments as a mapping or as a JSON object in a string",
            )
        arguments = dict(arguments)
    return CallView(function["name"], arguments, call.get("id"))
