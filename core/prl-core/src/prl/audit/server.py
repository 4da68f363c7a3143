"""What an OpenAI-compatible server does with messages: it renders all of them, each turn."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from prl.contracts import Renderer
from prl.render.conversation import view_messages
from prl.render.jinja.template import ChatTemplate, template_message
from prl.tokenizer import Tokenizer
from prl.types import Message, ToolSpec


class Server(Protocol):
    """Renders a conversation to ids as a server would; `told` says by what."""

    told: str

    def ids(self, messages: Sequence[Message], tools: Sequence[ToolSpec] | None, *, generate: bool) -> list[int]:
        """Return the prompt's ids; `generate` adds the generation prompt. Raises `RenderError`."""
        ...


class TemplateServer:
    """Renders through a chat template and encodes the text in one pass, as servers do."""

    def __init__(self, tokenizer: Tokenizer, source: str, told: str, variables: Mapping[str, Any]) -> None:
        self.told = told
        self._tokenizer = tokenizer
        own = {"bos_token": tokenizer.bos_token or "", "eos_token": tokenizer.eos_token or ""}
        self._template = ChatTemplate(source, {**own, **variables})

    def ids(self, messages: Sequence[Message], tools: Sequence[ToolSpec] | None, *, generate: bool) -> list[int]:
        """Return the ids of the template's text."""
        shown = [template_message(view) for view in view_messages([round_trip(one) for one in messages])]
        return self._tokenizer.encode(self._template.render(shown, tools, add_generation_prompt=generate))


class RendererServer:
    """Stands for a server whose chat template is not at hand: the renderer renders what the template would."""

    def __init__(self, renderer: Renderer) -> None:
        self.told = f"renderer {renderer.name}: no chat template is at hand"
        self._renderer = renderer

    def ids(self, messages: Sequence[Message], tools: Sequence[ToolSpec] | None, *, generate: bool) -> list[int]:
        """Return the ids of a full render."""
        shown = [round_trip(one) for one in messages]
        return self._renderer.render_ids(shown, tools=tools, add_generation_prompt=generate)


def round_trip(message: Message) -> Message:
    """Return a message as a server has it after the wire: arguments of calls are read from their JSON text.

    A text that is no JSON stays as it is: servers that do not refuse it hand it to the template.
    """
    calls = message.get("tool_calls")
    if not calls:
        return message
    read: Any = [{**call, "function": {**call["function"], "arguments": _arguments(call)}} for call in calls]
    return {**message, "tool_calls": read}


def _arguments(call: Mapping[str, Any]) -> Any:
    value = call["function"].get("arguments", {})
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return value
