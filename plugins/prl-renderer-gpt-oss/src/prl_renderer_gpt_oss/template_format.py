"""gpt-oss as its chat template writes it, where that differs from the vendor's encoder."""

from __future__ import annotations

from collections.abc import Sequence

from prl.contracts import CallView
from prl.render import Conversation, MessageView, Writer, bad_message, dump_json, mapping_arguments
from prl.types import ToolSpec
from prl_renderer_gpt_oss import template_declarations
from prl_renderer_gpt_oss.format import HarmonyFormat
from prl_renderer_gpt_oss.history import calls_at
from prl_renderer_gpt_oss.tokens import CALL, CHANNEL, END, MESSAGE, START

_MARKUP = ("<|channel|>analysis<|message|>", "<|channel|>final<|message|>")


class TemplateFormat(HarmonyFormat):
    """The chat template's layout."""

    def check(self, conversation: Conversation) -> None:
        """Refuse what the template refuses besides: channels inside texts, a call with both content and reasoning."""
        super().check(conversation)
        for view in conversation.new:
            if view.role != "assistant":
                continue
            if any(mark in text for mark in _MARKUP for text in (view.text, view.reasoning or "")):
                raise bad_message(view.index, "spells a channel in its text", "put reasoning and content in two fields")
            if view.calls and view.text and view.reasoning:
                raise bad_message(
                    view.index,
                    "has calls, content and reasoning, which the chat template cannot write",
                    "leave one of content and reasoning empty, or use layout='harmony'",
                )

    def write_developer(self, out: Writer, view: MessageView | None, tools: Sequence[ToolSpec] | None) -> None:
        """Write instructions and tools; a blank line follows instructions also where there are no tools."""
        super().write_developer(out, view, tools)
        if view is not None and not tools:
            end = out.pieces.pop()
            out.text("\n\n")
            out.pieces.append(end)

    def declare(self, tools: Sequence[ToolSpec]) -> str:
        """Return the tools as TypeScript."""
        return template_declarations.declare_functions(tools)

    def write_later_instructions(self, out: Writer, view: MessageView) -> None:
        """The template has no branch for them, and drops them."""

    def write_assistant(self, out: Writer, conversation: Conversation, position: int) -> None:
        """Write the reasoning, which may be the content of a turn with calls, and the first call."""
        view = conversation.messages[position]
        keeps = self.keeps_reasoning(conversation, position)
        if view.calls:
            thought = view.text or view.reasoning or ""
            if thought and keeps:
                self.write_text(out, "analysis", thought)
            call = view.calls[0]
            self.write_call(out, call._replace(arguments=mapping_arguments(call, view.index)))
            return
        if view.reasoning is not None and keeps:
            self.write_text(out, "analysis", view.reasoning)
        self.write_final(out, conversation, position)

    def write_call(self, out: Writer, call: CallView) -> None:
        """Write a call with a plain content type."""
        out.control(START)
        out.text("assistant to=functions.")
        out.value(call.name)
        out.control(CHANNEL)
        out.text("commentary json")
        out.control(MESSAGE)
        out.value(dump_json(call.arguments))
        out.control(CALL)

    def write_result(self, out: Writer, conversation: Conversation, position: int) -> None:
        """Write a tool's result as a JSON string."""
        out.control(START)
        out.text("functions.")
        out.value(self.called_function(conversation, position) or "")
        out.text(" to=assistant")
        out.control(CHANNEL)
        out.text("commentary")
        out.control(MESSAGE)
        out.text('"')
        out.content(dump_json(conversation.messages[position].text)[1:-1])
        out.text('"')
        out.control(END)

    def called_function(self, conversation: Conversation, position: int) -> str | None:
        """Return the first function of the turn before; the template looks at nothing else."""
        turn = next((n for n in range(position - 1, -1, -1) if conversation.role(n) == "assistant"), None)
        calls = calls_at(conversation, turn) if turn is not None else ()
        return calls[0].name if calls else None
