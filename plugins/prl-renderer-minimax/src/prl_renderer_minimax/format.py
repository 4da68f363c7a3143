"""MiniMax-M2 and its successors: always a system turn, reasoning opened by the prompt. FORMAT.md is the grammar."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from prl.contracts import ReasoningCodec, ToolCodec
from prl.parse import TaggedReasoning
from prl.render import (
    ChatFormat,
    ChatRenderer,
    Conversation,
    MessageView,
    Writer,
    bad_message,
    dump_json,
)
from prl.tokenizer import Tokenizer
from prl.types import RenderError, ToolSpec
from prl_renderer_minimax.options import MiniMaxOptions
from prl_renderer_minimax.tools import MiniMaxCodec

BEGIN, START, END = "]~!b[", "]~b]", "[e~["
THINK, END_THINK = "<think>", "</think>"
CONTROL_TOKENS = (BEGIN, START, END, THINK, END_THINK, MiniMaxCodec.open, MiniMaxCodec.close)
ROLES = ("assistant", "system", "tool", "user")
_TOOLS_HEAD = (
    "\n\n# Tools\nYou may call one or more tools to assist with the user query.\n"
    "Here are the tools available in JSONSchema format:\n\n<tools>\n"
)
_TOOLS_TAIL = (
    "</tools>\n\nWhen making tool calls, use XML format to invoke tools and pass parameters:\n\n<minimax:tool_call>\n"
    '<invoke name="tool-name-1">\n<parameter name="param-key-1">param-value-1</parameter>\n'
    '<parameter name="param-key-2">param-value-2</parameter>\n...\n</invoke>\n</minimax:tool_call>'
)


class MiniMaxFormat(ChatFormat):
    """MiniMax-M2: reasoning after the last user message only; calls in one region; results share a turn."""

    turn_opener: ClassVar[str] = START
    stop_tokens: ClassVar[tuple[str, ...]] = (END,)
    reasoning: ReasoningCodec | None = TaggedReasoning()
    tool_codec: ToolCodec | None = MiniMaxCodec()
    identity: ClassVar[str] = "You are MiniMax-M2, a helpful AI assistant built by MiniMax. Knowledge cutoff: 2025-06."
    quirks: ClassVar[Mapping[str, str]] = {
        "nothing_is_dropped": "the vendor's template has no branch for a system message that is not the first"
    }
    options: MiniMaxOptions

    def check(self, conversation: Conversation) -> None:
        """Refuse what the template refuses, and roles that it would drop without a word."""
        has_calls = conversation.is_bridge  # what the sampled turn calls may be known from its ids alone
        for view in conversation.new:
            if view.role not in ROLES:
                raise bad_message(
                    view.index, f"has role {view.role!r}, which MiniMax does not know", f"use one of {', '.join(ROLES)}"
                )
            if view.role == "assistant":
                has_calls = bool(view.calls)
            elif view.role == "tool" and not has_calls:
                raise bad_message(
                    view.index,
                    "is a tool result, but the last assistant message before it calls no tool",
                    "send the assistant message with its tool_calls, or drop the result",
                )

    @property
    def is_prefix_stable(self) -> bool:
        """With all reasoning kept, completed turns never change."""
        return not self.drops_reasoning

    def write_preamble(self, out: Writer, conversation: Conversation) -> None:
        """Write the system turn: the first message if it is a system message with a text, else the identity."""
        system = conversation.messages[0] if conversation.role(0) == "system" else None
        out.begin(system)
        out.control(BEGIN)
        out.control(START)
        out.text("system\n")
        if system is not None and system.text:
            out.content(system.text)
        else:
            out.text(self.identity if self.options.model_identity is None else self.options.model_identity)
        if conversation.tools is not None:
            out.text(_TOOLS_HEAD)
            for tool in conversation.tools:
                out.text(f"<tool>{dump_json(_function_of(tool))}</tool>\n")
            out.text(_TOOLS_TAIL)
        self._end_turn(out)

    def write_message(self, out: Writer, conversation: Conversation, position: int) -> None:
        """Write one turn; adjacent tool results share one. A system message that is not the first is dropped."""
        view = conversation.messages[position]
        out.begin(view)
        if view.role == "assistant":
            self._write_assistant(out, conversation, position)
        elif view.role == "tool":
            if conversation.role(position - 1) != "tool":
                out.control(START)
                out.text("tool")
            out.text("\n<response>")
            out.content(view.text)
            out.text("</response>")
            if conversation.role(position + 1) != "tool":
                self._end_turn(out)
        elif view.role == "user":
            out.control(START)
            out.text("user\n")
            out.content(view.text)
            self._end_turn(out)

    def _write_assistant(self, out: Writer, conversation: Conversation, position: int) -> None:
        """Write an assistant turn: its reasoning if it stays, its content, its calls."""
        view = conversation.messages[position]
        reasoning, text = _split(view)
        out.control(START)
        out.text("ai\n")
        out.begin_sampled()
        if reasoning and (not self.drops_reasoning or position > _last_user(conversation)):
            out.control(THINK)
            out.text("\n")
            out.content(reasoning)
            out.text("\n")
            out.control(END_THINK)
            out.text("\n\n")
        out.content(text)
        if view.calls and self.tool_codec is not None:
            calls = view.mapped_calls()
            self.tool_codec.write(out, calls, after_text=bool(text))
        out.control(END)
        out.end_sampled()
        out.text("\n")

    def write_generation_prompt(self, out: Writer, conversation: Conversation) -> None:
        """Open the assistant turn inside reasoning."""
        out.control(START)
        out.text("ai\n")
        out.control(THINK)
        out.text("\n")

    def _end_turn(self, out: Writer) -> None:
        out.control(END)
        out.text("\n")


class MiniMaxM21Format(MiniMaxFormat):
    """MiniMax-M2.1: another identity."""

    identity: ClassVar[str] = "You are a helpful assistant. Your name is MiniMax-M2.1 and is built by MiniMax."


class MiniMaxM25Format(MiniMaxFormat):
    """MiniMax-M2.5: another identity."""

    identity: ClassVar[str] = "You are a helpful assistant. Your name is MiniMax-M2.5 and is built by MiniMax."


class MiniMaxM27Format(MiniMaxFormat):
    """MiniMax-M2.7: another identity."""

    identity: ClassVar[str] = "You are a helpful assistant. Your name is MiniMax-M2.7 and is built by MiniMax."


def _split(view: MessageView) -> tuple[str, str]:
    """Return reasoning and content; without a reasoning field, the content before `</think>` is reasoning."""
    if view.reasoning is not None or END_THINK not in view.text:
        return view.reasoning or "", view.text
    reasoning = view.text.split(END_THINK)[0].strip("\n").split(THINK)[-1].strip("\n")
    return reasoning, view.text.split(END_THINK)[-1].strip("\n")


def _last_user(conversation: Conversation) -> int:
    """Position of the last user message, -1 where there is none."""
    if "last_user" not in conversation.memo:
        positions = [n for n, view in enumerate(conversation.messages) if view.role == "user"]
        conversation.memo["last_user"] = max(positions, default=-1)
    return int(conversation.memo["last_user"])


def _function_of(tool: ToolSpec) -> object:
    if "function" not in tool:
        raise RenderError(
            "a tool has no `function`",
            where="tools",
            next_step="send tools as {'type': 'function', 'function': {'name': ..., 'parameters': ...}}",
        )
    return tool["function"]


def create_minimax_m2(tokenizer: Tokenizer, options: MiniMaxOptions) -> ChatRenderer:
    """Create the `minimax-m2` renderer."""
    return ChatRenderer("minimax-m2", tokenizer, MiniMaxFormat(options), CONTROL_TOKENS)


def create_minimax_m21(tokenizer: Tokenizer, options: MiniMaxOptions) -> ChatRenderer:
    """Create the `minimax-m2.1` renderer."""
    return ChatRenderer("minimax-m2.1", tokenizer, MiniMaxM21Format(options), CONTROL_TOKENS)


def create_minimax_m25(tokenizer: Tokenizer, options: MiniMaxOptions) -> ChatRenderer:
    """Create the `minimax-m2.5` renderer."""
    return ChatRenderer("minimax-m2.5", tokenizer, MiniMaxM25Format(options), CONTROL_TOKENS)


def create_minimax_m27(tokenizer: Tokenizer, options: MiniMaxOptions) -> ChatRenderer:
    """Create the `minimax-m2.7` renderer."""
    return ChatRenderer("minimax-m2.7", tokenizer, MiniMaxM27Format(options), CONTROL_TOKENS)
