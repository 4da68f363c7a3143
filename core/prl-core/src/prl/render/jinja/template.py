"""A chat template, compiled and rendered as transformers does it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from prl.render.conversation import MessageView
from prl.types import ConfigError, RenderError, ToolSpec

# What templates raise besides jinja2's own errors when a message lacks what they expect.
_TEMPLATE_ERRORS = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    KeyError,
    IndexError,
    AttributeError,
    ZeroDivisionError,
)


class ChatTemplate:
    """One chat template. Variables besides messages, tools and the generation prompt are fixed at construction."""

    def __init__(self, source: str, variables: Mapping[str, Any]) -> None:
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.extensions[_GenerationBlock.identifier] = _GenerationBlock(environment)
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        self._variables = dict(variables)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as err:
            raise ConfigError(
                f"the chat template is not valid Jinja: {err}",
                where="the tokenizer's chat template",
                next_step="give a working one with chat_template=..., or use the model family's renderer plugin",
            ) from err

    def render(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[ToolSpec] | None, *, add_generation_prompt: bool
    ) -> str:
        """Return the text; what the template refuses is a `RenderError`."""
        try:
            return self._template.render(
                messages=list(messages),
                tools=list(tools) if tools else None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self._variables,
            )
        except _TEMPLATE_ERRORS as err:
            raise RenderError(
                f"the chat template refuses this conversation: {err}",
                where="the default renderer, on this model's chat template",
                next_step="change the conversation to what the template takes, or use the family's renderer plugin",
            ) from err


def template_message(view: MessageView) -> dict[str, Any]:
    """Return a message as templates expect it: text content, mapping arguments, no null fields."""
    message: dict[str, Any] = {"role": view.role, "content": view.text}
    if view.reasoning is not None:
        message["reasoning_content"] = view.reasoning
    if view.calls:
        message["tool_calls"] = [
            {
                "id": call.id or f"call_{n}",
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for n, call in enumerate(view.mapped_calls())
        ]
    if view.tool_call_id is not None:
        message["tool_call_id"] = view.tool_call_id
    if view.name is not None:
        message["name"] = view.name
    return message


class _GenerationBlock(jinja2.ext.Extension):
    """Accept `{% generation %}` blocks, which mark assistant text for other tools, as plain blocks."""

    tags = {"generation"}  # noqa: RUF012 (jinja2's own protocol)

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        """Keep the block's body."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body).set_lineno(line)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
