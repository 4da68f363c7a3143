"""Qwen3.5, Qwen3.6 and Qwen3.8: trimmed bodies, reasoning opened by the prompt, XML-like calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from prl.contracts import ReasoningCodec, ToolCodec
from prl.parse import TaggedReasoning
from prl.render import ChatRenderer, Conversation, MessageView, Writer, bad_message, dump_json
from prl.tokenizer import Tokenizer
from prl.types import RenderError, ToolSpec
from prl_renderer_qwen.format import (
    START,
    ChatMlFormat,
    Qwen3Format,
    VisionBodies,
    split_reasoning,
    write_think_block,
)
from prl_renderer_qwen.options import Qwen35Options, Qwen36Options, Qwen38Options
from prl_renderer_qwen.tokens import CONTROL_TOKENS, VISION_TOKENS
from prl_renderer_qwen.tools import QwenXmlCodec

_TOOLS_HEAD = "# Tools\n\nYou have access to the following functions:\n\n<tools>"
TOOLS_RULES = (
    "\n\nIf you choose to call a function ONLY reply in the following format with NO suffix:\n"
    "\n<tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>\nvalue_1\n"
    "</parameter>\n<parameter=example_parameter_2>\nThis is the value for the second parameter\nthat "
    "can span\nmultiple lines\n</parameter>\n</function>\n</tool_call>\n\n<IMPORTANT>\nReminder:\n- "
    "Function calls MUST follow the specified format: an inner <function=...></function> block must be "
    "nested within <tool_call></tool_call> XML tags\n- Required parameters MUST be specified\n- You "
    "may provide optional reasoning for your function call in natural language BEFORE the function "
    "call, but NOT after\n- If there is no function call available, answer the question like normal "
    "with your current knowledge and do not tell the user about function calls\n</IMPORTANT>"
)


class Qwen35Format(VisionBodies, Qwen3Format):
    """Qwen3.5: every body is trimmed; turns after the last query always have a think block."""

    reasoning: ReasoningCodec | None = TaggedReasoning(strip=None, content_strip=None)
    tool_codec: ToolCodec | None = QwenXmlCodec("python")
    content_strip: ClassVar[str | None] = None
    thinks_by_default: ClassVar[bool] = True
    options: Qwen35Options  # type: ignore[assignment]

    def check(self, conversation: Conversation) -> None:
        """Refuse what the template refuses: a later system message, media in the system message, no query."""
        super().check(conversation)
        for position, view in enumerate(conversation.new, conversation.first):
            if view.role == "system" and position:
                raise bad_message(
                    view.index, "is a system message but not the first", "move the system message to the beginning"
                )
            if view.role == "system" and view.parts is not None:
                raise bad_message(
                    view.index, "is a system message with media", "put images and videos into user messages"
                )
        if not conversation.is_bridge and not any(self.is_query(view) for view in conversation.messages):
            raise RenderError(
                "there is no user query in the messages",
                where="messages",
                next_step="Qwen3.5 needs at least one user message that is not a tool response",
            )

    def is_query(self, message: MessageView) -> bool:
        """A user message whose trimmed body is not a tool result in disguise."""
        text = self.body(message).strip()
        return message.role == "user" and not (text.startswith("<tool_response>") and text.endswith("</tool_response>"))

    def trim_body(self, text: str, *, left: bool = True, right: bool = True) -> str:
        """Trim white space at the outer ends of a body."""
        if left:
            text = text.lstrip()
        return text.rstrip() if right else text

    def write_preamble(self, out: Writer, conversation: Conversation) -> None:
        """Write the tools, then the first system message."""
        system = conversation.messages[0] if conversation.role(0) == "system" else None
        if system is None and conversation.tools is None:
            return
        out.begin(system)
        out.control(START)
        out.text("system\n")
        text = system.text.strip() if system is not None else ""
        if conversation.tools is not None:
            out.text(tools_block(conversation.tools) + ("\n\n" if text else ""))
        out.content(text)
        self._end_turn(out)

    def opens_tool_turn(self, conversation: Conversation, position: int) -> bool:
        """A tool result at the very beginning opens no turn (a quirk of the template's `loop.previtem`)."""
        return position > 0 and conversation.role(position - 1) != "tool"

    def keeps_all(self) -> bool:
        """Whether reasoning of turns before the last query stays."""
        return self.options.thinking_retention == "all"

    def split(self, view: MessageView, text: str) -> tuple[str, str]:
        """Return reasoning and content of an assistant message."""
        return split_reasoning(view, text)

    def write_assistant(self, out: Writer, conversation: Conversation, position: int) -> None:
        """Write an assistant turn with trimmed reasoning and content, and arguments as mappings."""
        view = conversation.messages[position]
        reasoning, text = self.split(view, self.body(view).strip())
        self._open_assistant(out)
        if self.keeps_all() or position > self.last_query(conversation):
            write_think_block(out, reasoning.strip())
        if view.parts is None:
            out.content(text)
        else:
            self.write_body(out, conversation, view)
        self._close_assistant(out, view.mapped_calls(), after_text=bool(text.strip()))

    def write_generation_prompt(self, out: Writer, conversation: Conversation) -> None:
        """Open the assistant turn inside reasoning, or behind an empty think block with thinking off."""
        ChatMlFormat.write_generation_prompt(self, out, conversation)
        enabled = self.options.enable_thinking
        if self.thinks_by_default if enabled is None else enabled:
            out.control("<think>")
            out.text("\n")
        else:
            write_think_block(out, "")


class Qwen35SmallFormat(Qwen35Format):
    """Qwen3.5-0.8B and 2B: thinking is off unless asked for."""

    thinks_by_default: ClassVar[bool] = False


class Qwen36Format(Qwen35Format):
    """Qwen3.6: JSON scalars in calls, and a switch that keeps all reasoning."""

    tool_codec: ToolCodec | None = QwenXmlCodec("json")
    options: Qwen36Options

    def keeps_all(self) -> bool:
        """Whether reasoning of turns before the last query stays."""
        return self.options.preserve_thinking or super().keeps_all()

    @property
    def drops_reasoning(self) -> bool:
        """Whether a new query makes the template rewrite earlier reasoning."""
        return not self.keeps_all()

    @property
    def is_prefix_stable(self) -> bool:
        """With all reasoning kept, completed turns never change."""
        return self.keeps_all()


class Qwen38Format(Qwen36Format):
    """Qwen3.8: an instruction on reasoning effort leads the system turn; past reasoning is kept by default."""

    options: Qwen38Options  # type: ignore[assignment]

    def keeps_all(self) -> bool:
        """Whether reasoning of turns before the last query stays."""
        return self.options.preserve_thinking is not False or self.options.thinking_retention == "all"

    def split(self, view: MessageView, text: str) -> tuple[str, str]:
        """Return reasoning and content; reasoning written into the content stays content."""
        return view.reasoning or "", text

    def write_preamble(self, out: Writer, conversation: Conversation) -> None:
        """Write effort, tools and system message as one turn, if there is any of them."""
        system = conversation.messages[0] if conversation.role(0) == "system" else None
        text = system.text.strip() if system is not None else ""
        effort = _EFFORTS[self.options.reasoning_effort or "xhigh"] if self.options.enable_thinking is not False else ""
        if not (text or effort or conversation.tools):
            return
        out.begin(system)
        out.control(START)
        out.text("system\n")
        scaffold = [effort] if effort else []
        if conversation.tools is not None:
            scaffold.append(tools_block(conversation.tools))
        out.text("\n\n".join([*scaffold, ""] if text else scaffold))
        out.content(text)
        self._end_turn(out)


_EFFORTS = {
    "xhigh": "Reasoning effort is set to xhigh. Please think carefully through the task, validate key assumptions, "
    "consider plausible alternatives, and prioritize correctness, consistency, and clarity in the final answer.",
    "medium": "",
    "low": "Reasoning effort is set to low. Keep your thinking brief and focused, moving directly to the conclusion "
    "without unnecessary elaboration.",
}


def tools_block(tools: Sequence[ToolSpec]) -> str:
    """Return the description of the tools, one JSON line each."""
    return _TOOLS_HEAD + "".join("\n" + dump_json(tool) for tool in tools) + "\n</tools>" + TOOLS_RULES


def create_qwen35(tokenizer: Tokenizer, options: Qwen35Options) -> ChatRenderer:
    """Create the `qwen3.5` renderer."""
    return ChatRenderer("qwen3.5", tokenizer, Qwen35Format(options), CONTROL_TOKENS + VISION_TOKENS)


def create_qwen35_small(tokenizer: Tokenizer, options: Qwen35Options) -> ChatRenderer:
    """Create the `qwen3.5-small` renderer."""
    return ChatRenderer("qwen3.5-small", tokenizer, Qwen35SmallFormat(options), CONTROL_TOKENS + VISION_TOKENS)


def create_qwen36(tokenizer: Tokenizer, options: Qwen36Options) -> ChatRenderer:
    """Create the `qwen3.6` renderer."""
    return ChatRenderer("qwen3.6", tokenizer, Qwen36Format(options), CONTROL_TOKENS + VISION_TOKENS)


def create_qwen38(tokenizer: Tokenizer, options: Qwen38Options) -> ChatRenderer:
    """Create the `qwen3.8` renderer."""
    return ChatRenderer("qwen3.8", tokenizer, Qwen38Format(options), CONTROL_TOKENS + VISION_TOKENS)
