"""Nemotron-3 Nano, Super and Ultra, and Nemotron-3.5. FORMAT.md is the grammar in prose."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from prl.contracts import ReasoningCodec, ToolCodec
from prl.parse import ReasoningState
from prl.render import ChatFormat, ChatRenderer, Conversation, MessageView, Writer, bad_message
from prl.tokenizer import Tokenizer
from prl_renderer_nemotron.options import NemotronOptions, NemotronSuperOptions, NemotronUltraOptions
from prl_renderer_nemotron.reasoning import loose_reasoning, tight_reasoning
from prl_renderer_nemotron.tools import NemotronXmlCodec, declare_tools

START, END = "<|im_start|>", "<|im_end|>"
THINK, END_THINK = "<think>", "</think>"
RESPONSE, END_RESPONSE = "<tool_response>", "</tool_response>"
CONTROL_TOKENS = (START, END, "</s>", THINK, END_THINK, "<tool_call>", "</tool_call>", RESPONSE, END_RESPONSE)
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})


class Body(NamedTuple):
    """An assistant's turn before its calls.

    `reasoning` is what stands in the think block: "" in an empty one, None where the content brings its own markers.
    `lead` is the template's white space before the content.
    """

    reasoning: str | None
    content: str
    lead: str = ""


class NemotronFormat(ChatFormat):
    """Nemotron-3 Nano: always a system turn, and a think block in every turn, emptied before the last user message.

    trims_calling: whether the content of a turn that calls a tool is trimmed where its block was emptied.
    """

    turn_opener: ClassVar[str] = START
    stop_tokens: ClassVar[tuple[str, ...]] = (END, "</s>")
    reasoning: ReasoningCodec = loose_reasoning()
    reasoning_placeholder: ClassVar[tuple[str, ...]] = (THINK, END_THINK)
    tool_codec: ToolCodec = NemotronXmlCodec()
    strips_content_end: ClassVar[bool] = True
    trims_calling: ClassVar[bool] = True
    options: NemotronOptions

    def check(self, conversation: Conversation) -> None:
        """Refuse roles that Nemotron does not know (the template writes a turn of any name)."""
        for view in conversation.new:
            if view.role not in _ROLES:
                raise bad_message(
                    view.index,
                    f"has role {view.role!r}, which Nemotron does not know",
                    f"use one of {', '.join(sorted(_ROLES))}",
                )

    def write_preamble(self, out: Writer, conversation: Conversation) -> None:
        """Write the system turn: the first message if it is one, then the tools; empty where there is neither."""
        system = conversation.messages[0] if conversation.role(0) == "system" else None
        out.begin(system)
        out.control(START)
        out.text("system\n")
        text = system.text if system is not None else ""
        out.content(text)
        if conversation.tools is not None:
            out.text(("\n\n" if text else "") + declare_tools(conversation.tools))
        self._end_turn(out)

    def write_message(self, out: Writer, conversation: Conversation, position: int) -> None:
        """Write one turn; adjacent tool results share one user turn."""
        view = conversation.messages[position]
        out.begin(view)
        if view.role == "assistant":
            self._write_assistant(out, conversation, position)
        elif view.role == "tool":
            self._write_result(out, conversation, position)
        elif view.role != "system" or position > 0:
            out.control(START)
            out.text(view.role + "\n")
            out.content(view.text)
            if view.role == "user" and position == self._last_user(conversation):
                out.text(self.effort)
            self._end_turn(out)

    def write_generation_prompt(self, out: Writer, conversation: Conversation) -> None:
        """Open the assistant turn inside reasoning, or behind an empty think block with thinking off."""
        out.control(START)
        out.text("assistant\n")
        out.control(THINK)
        if self.options.enable_thinking:
            out.text("\n")
        else:
            out.control(END_THINK)

    @property
    def effort(self) -> str:
        """What is written behind the last user message."""
        return ""

    @property
    def drops_reasoning(self) -> bool:
        """Whether a new user message empties earlier think blocks."""
        return self.options.truncate_history_thinking and self.options.thinking_retention != "all"

    @property
    def is_prefix_stable(self) -> bool:
        """With all reasoning kept and no effort asked for, completed turns never change."""
        return not self.drops_reasoning and not self.effort

    def rewrites_history(self, conversation: Conversation) -> bool:
        """Whether a new user message empties a block, or takes the effort from the user message before it."""
        new = conversation.new
        if self.effort and self.options.thinking_retention != "all" and any(self.is_query(view) for view in new):
            return True
        return super().rewrites_history(conversation)

    def write_close(self, out: Writer, conversation: Conversation) -> bool:
        """Close a turn that was cut off; behind reasoning the template has no line feed where no content follows."""
        sampled = conversation.sampled
        assert sampled is not None
        state = sampled.grammar.state_after(sampled.prompt_ids, sampled.completion_ids)
        if state is ReasoningState.OPEN:
            out.text(self.reasoning.before_close)
            out.control(END_THINK)
        out.control(END)
        return True

    def body(self, view: MessageView, *, keeps: bool) -> Body:
        """Return what stands before the calls, as the template's string operations leave it."""
        text = view.text
        marked = THINK in text or END_THINK in text
        if (view.reasoning or "").strip():
            if keeps:
                return Body(view.reasoning, text.rstrip(), self.reasoning.after_close)
            lead = "" if END_THINK in text else self.reasoning.after_close
            text = text.rpartition(END_THINK)[2]
        elif not marked:
            lead = ""
        elif keeps or not (view.calls or (THINK in text and END_THINK in text)):
            return Body(None, text.strip())
        else:
            lead = ""
            text = text.rpartition(END_THINK)[2] if END_THINK in text else text.split(THINK)[0]
        if keeps or not view.calls:
            return Body("", text.rstrip(), lead)
        return Body("", text.strip()) if self.trims_calling else Body("", text, lead)

    def _write_assistant(self, out: Writer, conversation: Conversation, position: int) -> None:
        view = conversation.messages[position]
        keeps = not self.drops_reasoning or position >= self._last_user(conversation)
        body = self.body(view, keeps=keeps)
        out.control(START)
        out.text("assistant\n")
        self._write_block(out, body)
        if body.content:
            out.text(body.lead)
            out.content(body.content)
        if view.calls:
            calls = view.mapped_calls()
            self.tool_codec.write(out, calls, after_text=True)
        self._end_turn(out)

    def _write_block(self, out: Writer, body: Body) -> None:
        """Write the think block. An empty one is never sampled: the prompt opens a filled one or brings it along."""
        if body.reasoning:
            out.begin_sampled()
            out.control(THINK)
            out.text(self.reasoning.after_open)
            out.content(body.reasoning)
            out.text(self.reasoning.before_close)
            out.control(END_THINK)
        elif body.reasoning is not None:
            out.control(THINK)
            out.control(END_THINK)
        out.begin_sampled()

    def _write_result(self, out: Writer, conversation: Conversation, position: int) -> None:
        """Write a tool result. One that no turn precedes opens no user turn (a quirk of `loop.previtem`)."""
        first = 1 if conversation.role(0) == "system" else 0
        if position > first and conversation.role(position - 1) != "tool":
            out.control(START)
            out.text("user\n")
        out.control(RESPONSE)
        out.text("\n")
        out.content(conversation.messages[position].text)
        out.text("\n")
        out.control(END_RESPONSE)
        out.text("\n")
        if conversation.role(position + 1) != "tool":
            self._end_turn(out)

    def _end_turn(self, out: Writer) -> None:
        out.control(END)
        out.end_sampled()
        out.text("\n")

    def _last_user(self, conversation: Conversation) -> int:
        """Position of the last user message, -1 where there is none (template: `last_user_idx`)."""
        if "last_user" not in conversation.memo:
            messages = conversation.messages
            found = (n for n in range(len(messages) - 1, -1, -1) if messages[n].role == "user")
            conversation.memo["last_user"] = next(found, -1)
        return int(conversation.memo["last_user"])


class NemotronSuperFormat(NemotronFormat):
    """Nemotron-3 Super: as Nano, with a request for little reasoning."""

    options: NemotronSuperOptions

    @property
    def effort(self) -> str:
        """What is written behind the last user message."""
        return "\n\n{reasoning effort: low}" if self.options.low_effort else ""


class Nemotron35Format(NemotronFormat):
    """Nemotron-3.5: no line feed around `</think>`, and content that is less trimmed."""

    reasoning: ReasoningCodec = tight_reasoning()
    trims_calling: ClassVar[bool] = False


class NemotronUltraFormat(Nemotron35Format):
    """Nemotron-3 Ultra: as 3.5, with a request for efficient reasoning."""

    options: NemotronUltraOptions

    @property
    def effort(self) -> str:
        """What is written behind the last user message."""
        return "\n\n{reasoning effort: efficient}" if self.options.medium_effort else ""


def create_nemotron_nano(tokenizer: Tokenizer, options: NemotronOptions) -> ChatRenderer:
    """Create the `nemotron-3-nano` renderer."""
    return ChatRenderer("nemotron-3-nano", tokenizer, NemotronFormat(options), CONTROL_TOKENS)


def create_nemotron_super(tokenizer: Tokenizer, options: NemotronSuperOptions) -> ChatRenderer:
    """Create the `nemotron-3-super` renderer."""
    return ChatRenderer("nemotron-3-super", tokenizer, NemotronSuperFormat(options), CONTROL_TOKENS)


def create_nemotron_ultra(tokenizer: Tokenizer, options: NemotronUltraOptions) -> ChatRenderer:
    """Create the `nemotron-3-ultra` renderer."""
    return ChatRenderer("nemotron-3-ultra", tokenizer, NemotronUltraFormat(options), CONTROL_TOKENS)


def create_nemotron_35(tokenizer: Tokenizer, options: NemotronOptions) -> ChatRenderer:
    """Create the `nemotron-3.5` renderer."""
    return ChatRenderer("nemotron-3.5", tokenizer, Nemotron35Format(options), CONTROL_TOKENS)
