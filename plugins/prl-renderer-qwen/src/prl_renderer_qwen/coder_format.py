"""Qwen3-Coder: no reasoning, XML-like calls, and tools described in XML."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar

from prl.contracts import ToolCodec
from prl.render import ChatRenderer, Conversation, MessageView, Writer, dump_json
from prl.tokenizer import Tokenizer
from prl.types import ToolSpec
from prl_renderer_qwen.format import START, ChatMlFormat
from prl_renderer_qwen.options import QwenOptions
from prl_renderer_qwen.tokens import CONTROL_TOKENS
from prl_renderer_qwen.tools import QwenXmlCodec
from prl_renderer_qwen.xml_format import TOOLS_RULES

DEFAULT_SYSTEM = "You are Qwen, a helpful AI assistant that can interact with a computer to solve tasks."


class Qwen3CoderFormat(ChatMlFormat):
    """Qwen3-Coder-30B and 480B: scalars as Python writes them, a line feed after every tool result."""

    tool_codec: ToolCodec | None = QwenXmlCodec("python")
    scalar: ClassVar[Callable[[Any], str]] = str
    result_ends_line: ClassVar[bool] = True

    @property
    def is_prefix_stable(self) -> bool:
        """Nothing of an earlier turn ever changes."""
        return True

    def write_preamble(self, out: Writer, conversation: Conversation) -> None:
        """Write the first system message, or a default one where there are tools, and the tools."""
        system = conversation.messages[0] if conversation.role(0) == "system" else None
        if system is None and conversation.tools is None:
            return
        out.begin(system)
        out.control(START)
        out.text("system\n")
        if system is None:
            out.text(DEFAULT_SYSTEM)
        else:
            out.content(system.text)
        if conversation.tools is not None:
            out.text("\n\n# Tools\n\nYou have access to the following functions:\n\n<tools>")
            for tool in conversation.tools:
                out.text(self._describe(tool))
            out.text("\n</tools>" + TOOLS_RULES)
        self._end_turn(out)

    def opens_tool_turn(self, conversation: Conversation, position: int) -> bool:
        """A result at the very beginning opens no turn (a quirk of the template's `loop.previtem`)."""
        first = 1 if conversation.role(0) == "system" else 0
        return position > first and conversation.role(position - 1) != "tool"

    def write_assistant(self, out: Writer, conversation: Conversation, position: int) -> None:
        """Write an assistant turn; content is trimmed only before calls."""
        view = conversation.messages[position]
        text = view.text.strip() if view.calls else view.text
        self._open_assistant(out)
        out.content(text)
        self._close_assistant(out, view.mapped_calls(), after_text=bool(text))

    def _write_tool_result(self, out: Writer, conversation: Conversation, view: MessageView) -> None:
        if not self.result_ends_line:
            super()._write_tool_result(out, conversation, view)
            return
        if out.pieces and out.pieces[-1][1] == "user":
            out.text("\n")
        out.control("<tool_response>")
        out.text("\n")
        self.write_body(out, conversation, view)
        out.text("\n")
        out.control("</tool_response>")
        out.text("\n")

    def _describe(self, tool: ToolSpec) -> str:
        """Return one tool in XML."""
        function: Mapping[str, Any] = tool.get("function", tool)
        parameters = function.get("parameters")
        lines = ["\n<function>\n<name>" + str(function.get("name", "")) + "</name>"]
        if "description" in function:
            lines.append(f"\n<description>{str(function['description']).strip()}</description>")
        lines.append("\n<parameters>")
        properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
        for name, fields in properties.items() if isinstance(properties, Mapping) else ():
            lines.append(self._describe_parameter(name, fields))
        lines.append(self._others(parameters, ("type", "properties")) + "\n</parameters>")
        lines.append(self._others(function, ("type", "name", "description", "parameters")) + "\n</function>")
        return "".join(lines)

    def _describe_parameter(self, name: str, fields: Any) -> str:
        known = fields if isinstance(fields, Mapping) else {}
        lines = [f"\n<parameter>\n<name>{name}</name>"]
        if "type" in known:
            lines.append(f"\n<type>{known['type']!s}</type>")
        if "description" in known:
            lines.append(f"\n<description>{str(known['description']).strip()}</description>")
        lines.append(self._others(fields, ("name", "type", "description")) + "\n</parameter>")
        return "".join(lines)

    def _others(self, fields: Any, handled: Collection[str]) -> str:
        """Return the fields that have no line of their own."""
        if not isinstance(fields, Mapping):
            return ""
        return "".join(f"\n<{key}>{self._value(value)}</{key}>" for key, value in fields.items() if key not in handled)

    def _value(self, value: Any) -> str:
        if isinstance(value, str):
            return value
        return dump_json(value) if isinstance(value, Mapping | list | tuple) else type(self).scalar(value)


class Qwen3CoderNextFormat(Qwen3CoderFormat):
    """Qwen3-Coder-Next: scalars as JSON, tool results as in Qwen3."""

    tool_codec: ToolCodec | None = QwenXmlCodec("json")
    scalar: ClassVar[Callable[[Any], str]] = dump_json
    result_ends_line: ClassVar[bool] = False


def create_qwen3_coder(tokenizer: Tokenizer, options: QwenOptions) -> ChatRenderer:
    """Create the `qwen3-coder` renderer."""
    return ChatRenderer("qwen3-coder", tokenizer, Qwen3CoderFormat(options), CONTROL_TOKENS)


def create_qwen3_coder_next(tokenizer: Tokenizer, options: QwenOptions) -> ChatRenderer:
    """Create the `qwen3-coder-next` renderer."""
    return ChatRenderer("qwen3-coder-next", tokenizer, Qwen3CoderNextFormat(options), CONTROL_TOKENS)
