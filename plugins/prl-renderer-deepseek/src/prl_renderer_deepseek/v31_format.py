"""DeepSeek-V3.1: bare JSON calls, finished turns that begin with `</think>`. FORMAT.md is the grammar in prose."""

from __future__ import annotations

from prl.contracts import ReasoningCodec, ToolCodec
from prl.render import ChatRenderer, Conversation, Writer
from prl.tokenizer import Tokenizer
from prl_renderer_deepseek.base import DeepSeekFormat
from prl_renderer_deepseek.options import V31Options
from prl_renderer_deepseek.reasoning import tight_reasoning
from prl_renderer_deepseek.tokens import (
    ASSISTANT,
    END_THINK,
    EOS,
    THINK,
    THINK_TOKENS,
    TOOL_TOKENS,
    TURN_TOKENS,
)
from prl_renderer_deepseek.tools import InlineCodec


class V31Format(DeepSeekFormat):
    """V3.1: finished turns begin with `</think>`; bare JSON calls; results stand alone."""

    reasoning: ReasoningCodec | None = tight_reasoning()
    tool_codec: ToolCodec | None = InlineCodec()
    options: V31Options

    def write_assistant(self, out: Writer, conversation: Conversation, position: int) -> None:
        """Write content without what stands before `</think>`, and calls; behind a user message with an opening."""
        view, state = conversation.messages[position], self.state(conversation, position)
        thought, text = view.reasoning or "", view.text
        if not view.calls and not state.after_results and END_THINK in text:
            inline, text = text.split(END_THINK, 1)
            thought = thought or inline.removeprefix(THINK)
        keeps = bool(thought) and self.keeps_reasoning(conversation, position)
        if state.after_user:
            out.control(ASSISTANT)
            if not keeps:
                out.control(END_THINK)
        out.begin_sampled()
        if keeps:
            out.control(THINK)
            out.content(thought)
            out.control(END_THINK)
        out.content(text)
        if view.calls:
            self.write_calls(out, view)
        out.control(EOS)

    def write_generation_prompt(self, out: Writer, conversation: Conversation) -> None:
        """Open the assistant turn behind a user message; elsewhere the model goes on."""
        size = len(conversation.messages)
        if size and not self.state(conversation, size).after_user:
            return
        out.control(ASSISTANT)
        out.control(THINK if self.options.thinking else END_THINK)


def create_v31(tokenizer: Tokenizer, options: V31Options) -> ChatRenderer:
    """Create the `deepseek-v3.1` renderer."""
    return ChatRenderer("deepseek-v3.1", tokenizer, V31Format(options), (*TURN_TOKENS, *TOOL_TOKENS, *THINK_TOKENS))
