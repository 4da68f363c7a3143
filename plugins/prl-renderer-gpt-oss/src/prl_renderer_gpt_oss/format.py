"""gpt-oss: conversations as harmony messages. FORMAT.md is the grammar in prose."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import ClassVar

from prl.contracts import CallView, StreamParser
from prl.parse import Grammar, ReasoningState
from prl.render import ChatFormat, ChatRenderer, Conversation, MessageView, Writer, bad_message
from prl.tokenizer import Tokenizer
from prl.types import ToolSpec
from prl_renderer_gpt_oss import builtin, declarations
from prl_renderer_gpt_oss.history import (
    called_function,
    create_harmony_parser,
    holds_analysis,
    last_control,
    last_message,
)
from prl_renderer_gpt_oss.options import GptOssOptions
from prl_renderer_gpt_oss.tokens import CALL, CHANNEL, CONTROL_TOKENS, END, MESSAGE, RETURN, START, STOP_TOKENS
from prl_renderer_gpt_oss.tools import Address, address_of, write_call_header_and_body

_INSTRUCTORS = ("system", "developer")
_ROLES = frozenset({*_INSTRUCTORS, "user", "assistant", "tool"})


class HarmonyFormat(ChatFormat):
    """Messages as the vendor's encoder writes them; the system and developer messages stand before the caller's."""

    turn_opener: ClassVar[str] = START
    stop_tokens: ClassVar[tuple[str, ...]] = STOP_TOKENS
    replaces_stop: ClassVar[bool] = True
    options: GptOssOptions

    def __init__(self, options: GptOssOptions) -> None:
        super().__init__(options)
        given = options.conversation_start_date
        self._date = date.today().isoformat() if given is None else given

    def check(self, conversation: Conversation) -> None:
        """Refuse unknown roles, and tool results of which nobody can say what was called."""
        for position, view in enumerate(conversation.new, conversation.first):
            if view.role not in _ROLES:
                raise bad_message(
                    view.index,
                    f"has role {view.role!r}, which harmony does not know",
                    f"use one of {', '.join(sorted(_ROLES))}",
                )
            if conversation.is_bridge:
                continue  # see `can_bridge`
            if view.role == "tool" and self.called_function(conversation, position) is None:
                raise bad_message(
                    view.index,
                    "is a tool result, but no earlier call tells the name of its tool",
                    "put the assistant message with the call before it, or give the message a `name`",
                )

    def write_preamble(self, out: Writer, conversation: Conversation) -> None:
        """Write the system message, and a developer message for instructions and tools."""
        out.begin(None)
        self._open(out, "system")
        out.text(self._system_text(bool(conversation.tools)))
        out.control(END)
        first = conversation.messages[0]
        instructions = first if first.role in _INSTRUCTORS and first.text else None
        if instructions is not None or conversation.tools:
            out.begin(instructions)
            self.write_developer(out, instructions, conversation.tools)

    def write_developer(self, out: Writer, view: MessageView | None, tools: Sequence[ToolSpec] | None) -> None:
        """Write instructions and tools."""
        self._open(out, "developer")
        if view is not None:
            out.text("# Instructions\n\n")
            out.content(view.text)
        if tools:
            out.text(("\n\n" if view is not None else "") + "# Tools\n\n" + self.declare(tools))
        out.control(END)

    def declare(self, tools: Sequence[ToolSpec]) -> str:
        """Return the tools as TypeScript."""
        return declarations.declare_functions(tools)

    def write_message(self, out: Writer, conversation: Conversation, position: int) -> None:
        """Write the harmony messages of one of the caller's."""
        view = conversation.messages[position]
        if view.role in _INSTRUCTORS and not position:
            return  # in the preamble
        out.begin(view)
        if view.role == "assistant":
            out.begin_sampled()
            self.write_assistant(out, conversation, position)
            out.end_sampled()
        elif view.role == "tool":
            self.write_result(out, conversation, position)
        elif view.role == "user":
            self._open(out, "user")
            out.content(view.text)
            out.control(END)
        else:
            self.write_later_instructions(out, view)

    def write_later_instructions(self, out: Writer, view: MessageView) -> None:
        """Write instructions that are not the first message: another developer message."""
        self.write_developer(out, view, None)

    def write_assistant(self, out: Writer, conversation: Conversation, position: int) -> None:
        """Write reasoning, then calls (after a preamble if there is content) or the final message."""
        view = conversation.messages[position]
        if view.reasoning and self.keeps_reasoning(conversation, position):
            self.write_text(out, "analysis", view.reasoning)
        if not view.calls:
            self.write_final(out, conversation, position)
            return
        if view.text:
            self.write_text(out, "commentary", view.text)
        for n, call in enumerate(view.calls):
            if n:
                out.end_sampled()  # after one call the model waits for the result
            self.write_call(out, call)

    def write_text(self, out: Writer, channel: str, text: str) -> None:
        """Write one assistant message that calls nobody and does not end the turn."""
        self._open(out, "assistant", channel)
        out.content(text)
        out.control(END)

    def write_final(self, out: Writer, conversation: Conversation, position: int) -> None:
        """Write the final message.

        Only the last one of a finished conversation ends as the model ends it; the token that closes earlier ones is
        never sampled.
        """
        self._open(out, "assistant", "final")
        out.content(conversation.messages[position].text)
        if self.is_end(conversation, position):
            out.control(RETURN)
        else:
            out.end_sampled()
            out.control(END)

    def write_call(self, out: Writer, call: CallView) -> None:
        """Write one call; of a second call in a turn, the model samples what comes after `assistant`."""
        out.control(START)
        out.text("assistant")
        out.begin_sampled()
        write_call_header_and_body(out, call, self._address(call.name))
        out.control(CALL)

    def write_result(self, out: Writer, conversation: Conversation, position: int) -> None:
        """Write a tool's result."""
        name = self.called_function(conversation, position)
        address = self._address(name or "")
        out.control(START)
        out.value(address.recipient)
        out.text(" to=assistant")
        out.control(CHANNEL)
        out.text(address.channel)
        out.control(MESSAGE)
        out.content(conversation.messages[position].text)
        out.control(END)

    def write_generation_prompt(self, out: Writer, conversation: Conversation) -> None:
        """Open an assistant message; the model writes its channel."""
        out.control(START)
        out.text("assistant")

    def write_close(self, out: Writer, conversation: Conversation) -> bool:
        """Close the message that was cut off; one that was cut in its header becomes an empty message."""
        last = last_control(conversation)
        if last == START:
            out.control(CHANNEL)
            out.text("final")
        if last not in (MESSAGE, END, CALL):
            out.control(MESSAGE)
        if last not in (END, CALL):
            out.control(END)
        return True

    def is_end(self, conversation: Conversation, position: int) -> bool:
        """Whether a message is the last one and no generation prompt follows (which happens in training only)."""
        return position == len(conversation.messages) - 1 and not conversation.has_prompt

    def keeps_reasoning(self, conversation: Conversation, position: int) -> bool:
        """Whether a turn's reasoning stands: until a final message follows, under the template's own rule."""
        if self.options.thinking_retention == "all":
            return True
        if self.options.thinking_retention == "tool_cycle":
            return position > last_message(conversation, "user")
        if self.is_end(conversation, position) and not conversation.messages[position].calls:
            return True
        return position > last_message(conversation, "assistant")

    def rewrites_history(self, conversation: Conversation) -> bool:
        """After a final message the template closes the turn by another token, and drops the reasoning before it.

        After a call it changes nothing.
        """
        retention, sampled = self.options.thinking_retention, conversation.sampled
        if retention == "all" or sampled is None:
            return False
        has_query = any(self.is_query(view) for view in conversation.new)
        if sampled.stop == RETURN:
            return True
        if sampled.stop == CALL and not (has_query and retention == "tool_cycle"):
            return False
        grammar = sampled.grammar
        return any(holds_analysis(grammar, ids) for ids in (sampled.completion_ids, sampled.prompt_ids))

    def can_bridge(self, conversation: Conversation, stop: str | None) -> bool:
        """Tool results need the name of their tool."""
        new = range(conversation.first, len(conversation.messages))
        return all(conversation.role(n) != "tool" or self.called_function(conversation, n) is not None for n in new)

    def called_function(self, conversation: Conversation, position: int) -> str | None:
        """Return the function that a tool result answers."""
        return called_function(conversation, position)

    def create_parser(
        self,
        grammar: Grammar,
        begin: ReasoningState,
        tools: Sequence[ToolSpec] | None,
        *,
        offset: int,
        prompt_ids: Sequence[int] | None = None,
    ) -> StreamParser:
        """Return the parser of one completion."""
        return create_harmony_parser(grammar, prompt_ids, offset=offset)

    def _system_text(self, has_functions: bool) -> str:
        options = self.options
        lines = [options.model_identity, f"Knowledge cutoff: {options.knowledge_cutoff}"]
        if self._date:
            lines.append(f"Current date: {self._date}")
        sections = ["\n".join(lines), f"Reasoning: {options.reasoning_effort}"]
        texts = [text for name, text in builtin.TEXTS.items() if name in options.builtin_tools]
        sections += ["# Tools", *texts] if texts else []
        channels = "# Valid channels: analysis, commentary, final. Channel must be included for every message."
        if has_functions:
            channels += "\nCalls to these tools must go to the commentary channel: 'functions'."
        return "\n\n".join([*sections, channels])

    def _address(self, name: str) -> Address:
        return address_of(name, self.options.builtin_tools)

    def _open(self, out: Writer, role: str, channel: str = "") -> None:
        out.control(START)
        out.text(role)
        if channel:
            out.control(CHANNEL)
            out.text(channel)
        out.control(MESSAGE)


def create_gpt_oss(tokenizer: Tokenizer, options: GptOssOptions) -> ChatRenderer:
    """Create the `gpt-oss` renderer."""
    from prl_renderer_gpt_oss.template_format import TemplateFormat

    layouts = {"harmony": HarmonyFormat, "template": TemplateFormat}
    return ChatRenderer("gpt-oss", tokenizer, layouts[options.layout](options), CONTROL_TOKENS)
