"""Kimi K2, K2-Thinking, K2.5 and K2.6. FORMAT.md is the grammar in prose."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import ClassVar

from prl.contracts import ReasoningCodec, ToolCodec
from prl.parse import CompletionParser
from prl.render import ChatFormat, ChatRenderer, Conversation, MessageView, SampledTurn, Writer, bad_message
from prl.tokenizer import Tokenizer
from prl.types import RenderError
from prl_renderer_kimi.options import Kimi25Options, Kimi26Options, KimiOptions
from prl_renderer_kimi.reasoning import kimi_reasoning
from prl_renderer_kimi.tools import ARGUMENT, BEGIN, CLOSE, OPEN, KimiCodec, named_id, written_id
from prl_renderer_kimi.tools import END as END_CALL
from prl_renderer_kimi.typescript import declare_tools

SYSTEM, USER, ASSISTANT = "<|im_system|>", "<|im_user|>", "<|im_assistant|>"
MIDDLE, END = "<|im_middle|>", "<|im_end|>"
THINK, END_THINK = "<think>", "</think>"
CONTROL_TOKENS = (SYSTEM, USER, ASSISTANT, MIDDLE, END, "[EOS]", OPEN, CLOSE, BEGIN, ARGUMENT, END_CALL)
THINK_TOKENS = (THINK, END_THINK)
MEDIA_TOKENS = ("<|media_begin|>", "<|media_content|>", "<|media_pad|>", "<|media_end|>")
_IDENTITY = "You are Kimi, an AI assistant created by Moonshot AI."
_OPENERS = {"user": USER, "assistant": ASSISTANT, "system": SYSTEM, "developer": SYSTEM, "tool": SYSTEM}


class KimiFormat(ChatFormat):
    """Kimi-K2-Instruct: a header that names the speaker, and no reasoning.

    identity: the system text where the caller gives none. identity_gap: what the template leaves behind that turn.
    """

    turn_opener: ClassVar[str] = MIDDLE  # three tokens open a turn, but only this one ends each header
    stop_tokens: ClassVar[tuple[str, ...]] = (END, "[EOS]")
    tool_codec: ToolCodec | None = KimiCodec()
    options: KimiOptions
    identity: ClassVar[str] = _IDENTITY
    identity_gap: ClassVar[str] = "\n"

    def check(self, conversation: Conversation) -> None:
        """Refuse roles that Kimi does not know (the template makes system turns of them) and names that are no text."""
        for view in conversation.new:
            if view.role not in _OPENERS:
                raise bad_message(
                    view.index,
                    f"has role {view.role!r}, which Kimi does not know",
                    f"use one of {', '.join(sorted(_OPENERS))}",
                )
            if not isinstance(view.name, str | None):
                raise bad_message(view.index, "has a `name` that is not text", "send the name as a string or null")

    def write_preamble(self, out: Writer, conversation: Conversation) -> None:
        """Write the tools, then the default system turn where the caller's first message is none."""
        out.begin(None)
        if conversation.tools is not None:
            self._write_header(out, SYSTEM, "tool_declare")
            out.text(self.tools_text(conversation))
            out.control(END)
        if self.identity and conversation.role(0) != "system":
            self._write_header(out, SYSTEM, "system")
            out.text(self.identity)
            out.control(END)
            out.text(self.identity_gap)

    def tools_text(self, conversation: Conversation) -> str:
        """The tools as compact JSON, keys sorted at every depth (the vendor's tokenizer does that before rendering)."""
        try:
            return json.dumps(conversation.tools, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        except (TypeError, ValueError) as err:
            raise RenderError(
                f"the tools cannot be written as JSON: {err}", where="tools", next_step="use only JSON types in tools"
            ) from err

    def write_message(self, out: Writer, conversation: Conversation, position: int) -> None:
        """Write one turn: header, body, close."""
        view = conversation.messages[position]
        out.begin(view)
        out.control(_OPENERS[view.role])
        if view.name:
            out.value(view.name)
        else:
            out.text(view.role)
        out.control(MIDDLE)
        if view.role == "assistant":
            out.begin_sampled()
            self.write_reasoning(out, conversation, position)
        elif view.role == "tool":
            out.text("## Return of ")
            out.value(written_id(self._ids(conversation)[position][0]))
            out.text("\n")
        self.write_body(out, view)
        if view.calls and self.tool_codec is not None:
            ids = self._ids(conversation)[position]
            calls = [call._replace(id=call_id) for call, call_id in zip(view.calls, ids, strict=True)]
            self.tool_codec.write(out, calls, after_text=bool(view.text))
        out.control(END)

    def write_reasoning(self, out: Writer, conversation: Conversation, position: int) -> None:
        """Write what stands before an assistant's body: nothing."""

    def write_body(self, out: Writer, view: MessageView) -> None:
        """Write a message's own text."""
        out.content(view.text)

    def write_generation_prompt(self, out: Writer, conversation: Conversation) -> None:
        """Open the assistant turn."""
        self._write_header(out, ASSISTANT, "assistant")

    @property
    def is_prefix_stable(self) -> bool:
        """No turn depends on a later one."""
        return True

    def _ids(self, conversation: Conversation) -> list[list[str | None]]:
        """Per message: the ids of its calls, or of the call that it answers, under the option `call_ids`."""
        if "ids" not in conversation.memo:
            messages = conversation.messages
            if self.options.call_ids == "named":
                conversation.memo["ids"] = _named_ids(messages)
            else:
                conversation.memo["ids"] = [
                    [call.id for call in view.calls] or [view.tool_call_id] for view in messages
                ]
        ids: list[list[str | None]] = conversation.memo["ids"]
        return ids

    def _write_header(self, out: Writer, opener: str, name: str) -> None:
        out.control(opener)
        out.text(name)
        out.control(MIDDLE)


class KimiThinkingFormat(KimiFormat):
    """Kimi-K2-Thinking: every assistant turn has a think block, emptied once an answer without calls has come."""

    reasoning: ReasoningCodec | None = kimi_reasoning()
    reasoning_placeholder: ClassVar[tuple[str, ...]] = THINK_TOKENS
    identity_gap: ClassVar[str] = ""

    @property
    def thinks(self) -> bool:
        """Whether reasoning is written at all."""
        return True

    @property
    def keeps_all(self) -> bool:
        """Whether no reasoning is ever dropped."""
        return self.options.thinking_retention == "all"

    @property
    def drops_reasoning(self) -> bool:
        """Whether later messages can empty a think block."""
        return not self.keeps_all

    @property
    def is_prefix_stable(self) -> bool:
        """With all reasoning kept, or none written, no turn depends on a later one."""
        return self.keeps_all or not self.thinks

    def write_reasoning(self, out: Writer, conversation: Conversation, position: int) -> None:
        """Write the think block, with its reasoning or without."""
        out.control(THINK)
        if self.keeps_all or (self.thinks and position > self._last_dropped(conversation)):
            out.content(conversation.messages[position].reasoning or "")
        out.control(END_THINK)

    def rewrites_history(self, conversation: Conversation) -> bool:
        """Whether a filled think block would be emptied: by the sampled answer itself, whatever follows it.

        With retention "tool_cycle" a new query does that; with thinking off the template leaves no block filled.
        """
        sampled = conversation.sampled
        if sampled is None or self.keeps_all:
            return False
        if not sampled.holds_reasoning(self.reasoning_placeholder):
            return False
        if self.thinks and self.options.thinking_retention == "tool_cycle":
            return any(self.is_query(view) for view in conversation.new)
        return not self.thinks or not _calls_tools(sampled, conversation)

    def _last_dropped(self, conversation: Conversation) -> int:
        """Position of the last message up to which think blocks are empty, -1 where there is none."""
        if "last_dropped" not in conversation.memo:
            by_query = self.options.thinking_retention == "tool_cycle"
            ends = self.is_query if by_query else _is_answer
            positions = range(len(conversation.messages) - 1, -1, -1)
            conversation.memo["last_dropped"] = next((n for n in positions if ends(conversation.messages[n])), -1)
        return int(conversation.memo["last_dropped"])


class Kimi25Format(KimiThinkingFormat):
    """Kimi K2.5: no default system turn, TypeScript tool declarations, images, and a prompt that opens reasoning."""

    identity: ClassVar[str] = ""
    media: ClassVar[frozenset[str]] = frozenset({"image"})
    options: Kimi25Options

    @property
    def thinks(self) -> bool:
        """Whether reasoning is written at all."""
        return self.options.thinking is not False

    def tools_text(self, conversation: Conversation) -> str:
        """The tools as TypeScript declarations."""
        return declare_tools(super().tools_text(conversation))

    def write_body(self, out: Writer, view: MessageView) -> None:
        """Write text as content and each image as a placeholder, where the caller put it."""
        for part in view.parts or ():
            if part.kind == "text":
                out.content(part.text)
                continue
            out.control("<|media_begin|>")
            out.text("image")
            out.control("<|media_content|>")
            out.control("<|media_pad|>")
            out.control("<|media_end|>")
            out.text("\n")
        if view.parts is None:
            out.content(view.text)

    def write_generation_prompt(self, out: Writer, conversation: Conversation) -> None:
        """Open the assistant turn inside reasoning, or behind an empty think block with thinking off."""
        super().write_generation_prompt(out, conversation)
        out.control(THINK)
        if not self.thinks:
            out.control(END_THINK)


class Kimi26Format(Kimi25Format):
    """Kimi K2.6: as K2.5, with a switch that keeps all reasoning."""

    options: Kimi26Options

    @property
    def keeps_all(self) -> bool:
        """Whether no reasoning is ever dropped."""
        return self.options.preserve_thinking or super().keeps_all


def _named_ids(messages: Sequence[MessageView]) -> list[list[str | None]]:
    """Return ids that name their functions; results follow their calls by the id they give, else by their order."""
    renamed: dict[str | None, str] = {}
    waiting: list[str] = []
    found: list[list[str | None]] = []
    index = 0
    for view in messages:
        if view.role == "tool":
            next_id = waiting.pop(0) if waiting else None
            given = view.tool_call_id
            found.append([next_id if given is None else renamed.get(given, given)])
            continue
        ids = [named_id(call, index + n) for n, call in enumerate(view.calls)]
        renamed.update((call.id, call_id) for call, call_id in zip(view.calls, ids, strict=True) if call.id is not None)
        waiting, index = list(ids), index + len(ids)
        found.append([*ids])
    return found


def _is_answer(view: MessageView) -> bool:
    """Whether a message is an assistant turn without calls."""
    return view.role == "assistant" and not view.calls


def _calls_tools(sampled: SampledTurn, conversation: Conversation) -> bool:
    """Whether the sampled turn calls a tool: as the caller's history has it, else as its ids read."""
    turn = conversation.messages[conversation.first - 1]
    if turn.index >= 0:
        return bool(turn.calls)
    grammar = sampled.grammar
    parser = CompletionParser(grammar, grammar.state_after(sampled.prompt_ids), conversation.tools)
    parser.feed(sampled.completion_ids)
    return bool(parser.finish().tool_calls)


def create_kimi_k2(tokenizer: Tokenizer, options: KimiOptions) -> ChatRenderer:
    """Create the `kimi-k2` renderer."""
    return ChatRenderer("kimi-k2", tokenizer, KimiFormat(options), CONTROL_TOKENS)


def create_kimi_k2_thinking(tokenizer: Tokenizer, options: KimiOptions) -> ChatRenderer:
    """Create the `kimi-k2-thinking` renderer."""
    return ChatRenderer("kimi-k2-thinking", tokenizer, KimiThinkingFormat(options), CONTROL_TOKENS + THINK_TOKENS)


def create_kimi_k25(tokenizer: Tokenizer, options: Kimi25Options) -> ChatRenderer:
    """Create the `kimi-k2.5` renderer."""
    tokens = CONTROL_TOKENS + THINK_TOKENS + MEDIA_TOKENS
    return ChatRenderer("kimi-k2.5", tokenizer, Kimi25Format(options), tokens)


def create_kimi_k26(tokenizer: Tokenizer, options: Kimi26Options) -> ChatRenderer:
    """Create the `kimi-k2.6` renderer."""
    tokens = CONTROL_TOKENS + THINK_TOKENS + MEDIA_TOKENS
    return ChatRenderer("kimi-k2.6", tokenizer, Kimi26Format(options), tokens)
