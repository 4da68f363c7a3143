"""The echo format: `<|turn|>role`, a line feed, the body, `<|end|>`, a line feed."""

from __future__ import annotations

from typing import ClassVar

from prl.render import ChatFormat, ChatRenderer, Conversation, Writer, bad_message
from prl.tokenizer import Tokenizer
from prl.types import RenderError
from prl_renderer_echo.options import EchoOptions

TURN, END = "<|turn|>", "<|end|>"
ROLES = ("system", "user", "assistant")


class EchoFormat(ChatFormat):
    """One turn a message; no tools, no reasoning."""

    turn_opener: ClassVar[str] = TURN
    stop_tokens: ClassVar[tuple[str, ...]] = (END,)
    is_prefix_stable = True
    options: EchoOptions

    def check(self, conversation: Conversation) -> None:
        """Refuse what the format has no place for; dropping it would be a silent loss."""
        if conversation.tools is not None:
            raise RenderError("echo has no tools", where="tools", next_step="render without tools")
        for view in conversation.new:
            if view.role not in ROLES:
                raise bad_message(view.index, f"has role {view.role!r}", f"use one of {', '.join(ROLES)}")
            if view.calls:
                raise bad_message(view.index, "has tool calls, which echo cannot write", "remove them")

    def write_preamble(self, out: Writer, conversation: Conversation) -> None:
        """Write the default system turn where the conversation has none of its own."""
        if self.options.default_system is None or conversation.role(0) == "system":
            return
        out.begin(None)
        out.control(TURN)
        out.text("system\n" + self.options.default_system)
        out.control(END)
        out.text("\n")

    def write_message(self, out: Writer, conversation: Conversation, position: int) -> None:
        """Write one turn; of an assistant turn, the body and the close are what the model samples."""
        view = conversation.messages[position]
        out.begin(view)
        out.control(TURN)
        out.text(view.role + "\n")
        if view.role == "assistant":
            out.begin_sampled()
        out.content(view.text)
        out.control(END)
        out.end_sampled()
        out.text("\n")

    def write_generation_prompt(self, out: Writer, conversation: Conversation) -> None:
        """Open the assistant turn."""
        out.control(TURN)
        out.text("assistant\n")


def create(tokenizer: Tokenizer, options: EchoOptions) -> ChatRenderer:
    """Create the `echo` renderer."""
    return ChatRenderer("echo", tokenizer, EchoFormat(options), (TURN, END))
