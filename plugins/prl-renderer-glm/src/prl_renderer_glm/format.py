"""GLM-4.5 to 5: role markers without a close, reasoning in `<think>`, results in `<|observation|>` turns.

FORMAT.md is the grammar in prose.
"""

from __future__ import annotations

from typing import ClassVar

from prl.contracts import ReasoningCodec, ToolCodec
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
from prl.types import ToolSpec
from prl_renderer_glm.options import Glm45Options, Glm47Options
from prl_renderer_glm.reasoning import bare_think
from prl_renderer_glm.tools import GlmCodec

SYSTEM, USER, ASSISTANT, OBSERVATION = "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"
THINK, END_THINK = "<think>", "</think>"
NO_THINK = "/nothink"
MARKERS = {"system": SYSTEM, "user": USER, "assistant": ASSISTANT, "tool": OBSERVATION}
CONTROL_TOKENS = (
    *("[gMASK]", "<sop>", SYSTEM, USER, ASSISTANT, OBSERVATION, "<|endoftext|>", THINK, END_THINK),
    *("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
    *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
)
_TOOLS_HEAD = (
    "\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with function "
    "signatures within <tools></tools> XML tags:\n<tools>\n"
)
_TOOLS_TAIL = (
    "</tools>\n\nFor each function call, output the function name and arguments within the following XML format:\n"
)
_CALL_FORM = (
    "<tool_call>{function-name}",
    *("<arg_key>{arg-key-1}</arg_key>", "<arg_value>{arg-value-1}</arg_value>"),
    *("<arg_key>{arg-key-2}</arg_key>", "<arg_value>{arg-value-2}</arg_value>"),
    *("...", "</tool_call>"),
)


class Glm45Format(ChatFormat):
    """GLM-4.5 and 4.6, and what later versions share.

    gap: what the template writes between markers and text.
    prompts_marker: whether the generation prompt holds the first reasoning marker, so that it is never sampled.
    """

    turn_opener: ClassVar[str] = ASSISTANT
    stop_tokens: ClassVar[tuple[str, ...]] = (USER, OBSERVATION, "<|endoftext|>")
    reasoning: ReasoningCodec | None = bare_think()
    tool_codec: ToolCodec | None = GlmCodec(line_feeds=True)
    content_strip: ClassVar[str | None] = None
    reasoning_placeholder: ClassVar[tuple[str, ...]] = (THINK, END_THINK)
    gap: ClassVar[str] = "\n"
    prompts_marker: ClassVar[bool] = False
    options: Glm45Options

    def check(self, conversation: Conversation) -> None:
        """Refuse roles that the template does not know (it would drop such messages without a word)."""
        for view in conversation.new:
            if view.role not in MARKERS:
                raise bad_message(
                    view.index,
                    f"has role {view.role!r}, which GLM does not know",
                    f"use one of {', '.join(sorted(MARKERS))}",
                )

    def keeps_all(self) -> bool:
        """Whether reasoning of turns before the last user message stays."""
        return self.options.thinking_retention == "all"

    @property
    def is_prefix_stable(self) -> bool:
        """With all reasoning kept, completed turns never change; a written stop may not be the one that follows."""
        return self.keeps_all() and not self.options.close_last_turn

    @property
    def drops_reasoning(self) -> bool:
        """Whether a new user message makes the template drop earlier reasoning."""
        return not self.keeps_all()

    def can_bridge(self, conversation: Conversation, stop: str | None) -> bool:
        """A sampled role marker opens a turn of that role and of no other."""
        return stop not in MARKERS.values() or stop == MARKERS.get(conversation.role(conversation.first))

    def write_preamble(self, out: Writer, conversation: Conversation) -> None:
        """Write the prefix and the tools."""
        out.control("[gMASK]")
        out.control("<sop>")
        self.write_effort(out)
        if conversation.tools is not None:
            out.control(SYSTEM)
            out.text(_TOOLS_HEAD)
            for tool in conversation.tools:
                out.text(self.tool_line(tool))
            out.text(_TOOLS_TAIL + self.gap.join(_CALL_FORM))

    def write_effort(self, out: Writer) -> None:
        """Write the reasoning effort."""

    def tool_line(self, tool: ToolSpec) -> str:
        """One tool in the list."""
        return dump_json(tool) + "\n"

    def write_message(self, out: Writer, conversation: Conversation, position: int) -> None:
        """Write one turn; adjacent tool results share one."""
        view = conversation.messages[position]
        if view.role == "assistant":
            self._write_assistant(out, conversation, position)
            return
        if view.role != "tool" or conversation.role(position - 1) != "tool":
            self._open_turn(out, conversation, position)
        out.begin(view)
        out.text(self.gap)
        if view.role != "tool":
            self.write_body(out, view)
            return
        out.control("<tool_response>")
        out.text(self.gap)
        self.write_body(out, view)
        out.text(self.gap)
        out.control("</tool_response>")

    def _open_turn(self, out: Writer, conversation: Conversation, position: int) -> None:
        """Write a role marker; behind an assistant turn, one that the model stops on is that turn's last sampled token.

        In a bridge it is either in the sampled ids already, or nobody sampled it.
        """
        marker = MARKERS[conversation.messages[position].role]
        if conversation.role(position - 1) == "assistant" and marker in self.stop_tokens and not conversation.is_bridge:
            out.begin(conversation.messages[position - 1])
            out.begin_sampled()
        else:
            out.begin(conversation.messages[position])
        out.control(marker)

    def write_body(self, out: Writer, view: MessageView) -> None:
        """Write the body of a user's, system's or tool's message."""
        out.content(view.text)
        if view.role == "user" and self.options.enable_thinking is False and not view.text.endswith(NO_THINK):
            out.control(NO_THINK)

    def _write_assistant(self, out: Writer, conversation: Conversation, position: int) -> None:
        """Write an assistant turn: its reasoning or a placeholder, its content, its calls."""
        view = conversation.messages[position]
        reasoning, text = self.split(view)
        out.begin(view)
        out.control(ASSISTANT)
        if not self.prompts_marker:
            out.begin_sampled()
        thought = self.thought(conversation, position, reasoning)
        first, *others = self.reasoning_placeholder if thought is None else (THINK, END_THINK)
        out.text(self.gap)
        out.control(first)
        out.begin_sampled()
        out.content(thought or "")
        for marker in others:
            out.control(marker)
        if text.strip():
            out.text(self.gap)
            out.content(text.strip())
        if view.calls and self.tool_codec is not None:
            calls = view.mapped_calls()
            self.tool_codec.write(out, calls, after_text=bool(text.strip()))
        if self.options.close_last_turn and position == len(conversation.messages) - 1:
            out.control(OBSERVATION if view.calls else USER)
        out.end_sampled()

    def thought(self, conversation: Conversation, position: int, reasoning: str | None) -> str | None:
        """The reasoning to write, None for the placeholder."""
        if reasoning and self.is_kept(conversation, position):
            return reasoning.strip()
        return None

    def is_kept(self, conversation: Conversation, position: int) -> bool:
        """Whether a turn's reasoning stays: after the last user message, or everywhere."""
        return self.keeps_all() or position > last_user(conversation)

    def split(self, view: MessageView) -> tuple[str | None, str]:
        """Return reasoning and content; without a reasoning field, the content before `</think>` is reasoning."""
        text = self.body(view)
        if view.reasoning is not None or END_THINK not in text:
            return view.reasoning, text
        reasoning = text.split(END_THINK)[0].rstrip("\n").split(THINK)[-1].lstrip("\n")
        return reasoning, text.split(END_THINK)[-1].lstrip("\n")

    def body(self, view: MessageView) -> str:
        """A message's text as the template sees it."""
        return view.text

    def write_generation_prompt(self, out: Writer, conversation: Conversation) -> None:
        """Open the assistant turn; with thinking off, behind an empty think block."""
        out.control(ASSISTANT)
        if self.options.enable_thinking is False:
            out.text("\n")
            out.control(THINK)
            out.control(END_THINK)


class Glm47Format(Glm45Format):
    """GLM-4.7 and 5: no line feeds; the generation prompt opens or closes reasoning; earlier reasoning can be kept."""

    tool_codec: ToolCodec | None = GlmCodec()
    reasoning_placeholder: ClassVar[tuple[str, ...]] = (END_THINK,)
    gap: ClassVar[str] = ""
    prompts_marker: ClassVar[bool] = True
    options: Glm47Options

    def keeps_all(self) -> bool:
        """Whether reasoning of turns before the last user message stays."""
        return self.options.clear_thinking is False or super().keeps_all()

    def write_body(self, out: Writer, view: MessageView) -> None:
        """Write the body of a user's, system's or tool's message."""
        out.content(view.text)

    def write_generation_prompt(self, out: Writer, conversation: Conversation) -> None:
        """Open the assistant turn inside reasoning; with thinking off, behind it."""
        out.control(ASSISTANT)
        out.control(END_THINK if self.options.enable_thinking is False else THINK)


def last_user(conversation: Conversation) -> int:
    """Position of the last user message, -1 where there is none."""
    if "last_user" not in conversation.memo:
        positions = [n for n, view in enumerate(conversation.messages) if view.role == "user"]
        conversation.memo["last_user"] = max(positions, default=-1)
    return int(conversation.memo["last_user"])


def create_glm45(tokenizer: Tokenizer, options: Glm45Options) -> ChatRenderer:
    """Create the `glm-4.5` renderer."""
    return ChatRenderer("glm-4.5", tokenizer, Glm45Format(options), (*CONTROL_TOKENS, NO_THINK))


def create_glm47(tokenizer: Tokenizer, options: Glm47Options) -> ChatRenderer:
    """Create the `glm-4.7` renderer."""
    return ChatRenderer("glm-4.7", tokenizer, Glm47Format(options), CONTROL_TOKENS)


def create_glm5(tokenizer: Tokenizer, options: Glm47Options) -> ChatRenderer:
    """Create the `glm-5` renderer."""
    return ChatRenderer("glm-5", tokenizer, Glm47Format(options), CONTROL_TOKENS)
