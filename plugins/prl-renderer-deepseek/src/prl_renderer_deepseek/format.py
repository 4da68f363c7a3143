"""DeepSeek-V3 and R1: fenced calls, and templates with many quirks. FORMAT.md is the grammar in prose."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from prl.contracts import ReasoningCodec, ToolCodec
from prl.render import ChatRenderer, Conversation, MessageView, Writer
from prl.tokenizer import Tokenizer
from prl_renderer_deepseek.base import NO_TOOLS, DeepSeekFormat, State
from prl_renderer_deepseek.options import DeepSeekOptions
from prl_renderer_deepseek.reasoning import spaced_reasoning
from prl_renderer_deepseek.tokens import (
    ASSISTANT,
    CALL,
    CALLS,
    END_CALLS,
    END_RESULTS,
    END_THINK,
    EOS,
    RESULTS,
    THINK,
    THINK_TOKENS,
    TOOL_TOKENS,
    TURN_TOKENS,
)
from prl_renderer_deepseek.tools import FencedCodec

_UNCLOSED = "the vendor's template writes calls beside no content only, and closes them from the second call on only"


class V3Format(DeepSeekFormat):
    """V3: no reasoning; calls in a code fence, whose template closes them from the second call on only."""

    tool_codec: ToolCodec | None = FencedCodec()
    quirks: ClassVar[Mapping[str, str]] = dict.fromkeys(
        (
            "nothing_is_dropped",
            "everything_is_bridged_where_all_is_kept",
            "a_turn_is_sampled_to_its_stop_token",
            "parse_gives_back_what_was_rendered",
            "a_parsed_turn_comes_back_the_same",
        ),
        _UNCLOSED,
    )

    def has_calls(self, view: MessageView) -> bool:
        """The template drops the calls of a turn with content."""
        return bool(view.calls) and not view.text

    def write_assistant(self, out: Writer, conversation: Conversation, position: int) -> None:
        """Write content, or calls."""
        view, state = conversation.messages[position], self.state(conversation, position)
        if self.has_calls(view):
            self.write_quirky_calls(out, state, view)
            return
        if state.after_results:
            out.control(END_RESULTS)
        else:
            out.control(ASSISTANT)
        out.begin_sampled()
        out.content(view.text)
        out.control(EOS)

    def write_quirky_calls(self, out: Writer, state: State, view: MessageView) -> None:
        """Write calls: the first of the conversation opens the block, every other one closes it and the turn."""
        codec = self.tool_codec
        assert isinstance(codec, FencedCodec)
        if not state.called:
            out.control(ASSISTANT)
            out.begin_sampled()
            out.control(CALLS)
        out.begin_sampled()
        for n, call in enumerate(view.calls):
            first = not state.called and n == 0
            codec.write_call(out, call, first=first)
            if not first:
                out.control(END_CALLS)
                out.control(EOS)

    def write_result(self, out: Writer, state: State, view: MessageView) -> None:
        """Write a result; the first of the conversation opens the block, a line feed stands before the others."""
        if state.answered:
            out.text("\n")
        else:
            out.control(RESULTS)
        super().write_result(out, state, view)

    def end_results(self, out: Writer) -> None:
        """Close the results; the answer continues behind them."""
        out.control(END_RESULTS)

    def write_generation_prompt(self, out: Writer, conversation: Conversation) -> None:
        """Open the assistant turn, except behind results."""
        if not self._ends_in_results(conversation):
            out.control(ASSISTANT)

    def rewrites_history(self, conversation: Conversation) -> bool:
        """The template writes calls as a model does only where a conversation's first turn of calls has two of them."""
        sampled = conversation.sampled
        if sampled is None or self.options.thinking_retention == "all":
            return False
        controls = sampled.grammar.controls
        made = list(sampled.completion_ids).count(controls[CALL])
        if not made:
            return controls[CALLS] in sampled.completion_ids
        return made != 2 or controls[CALL] in sampled.prompt_ids or sampled.completion_ids[0] != controls[CALLS]

    def _ends_in_results(self, conversation: Conversation) -> bool:
        return bool(conversation.messages) and self.state(conversation, len(conversation.messages)).after_results


class R1Format(V3Format):
    """R1: the prompt opens reasoning, finished turns have none; each turn of calls is closed."""

    reasoning: ReasoningCodec | None = spaced_reasoning()
    quirks: ClassVar[Mapping[str, str]] = {"nothing_is_dropped": NO_TOOLS}

    def has_calls(self, view: MessageView) -> bool:
        """The template writes calls and content."""
        return bool(view.calls)

    def write_assistant(self, out: Writer, conversation: Conversation, position: int) -> None:
        """Write content without what stands before `</think>`, and calls.

        Of all turns of calls, only the conversation's first has its opening and its content.
        """
        view, state = conversation.messages[position], self.state(conversation, position)
        thought, text = split_reasoning(view)
        if view.calls and state.called:
            out.begin_sampled()
            out.text("\n")
            self._write_calls_only(out, view)
            return
        if state.after_results and not view.calls:
            out.control(END_RESULTS)
            out.begin_sampled()
            out.content(view.text)
        else:
            out.control(ASSISTANT)
            out.begin_sampled()
            keeps = bool(thought) and self.keeps_reasoning(conversation, position)
            if keeps:
                self._write_thought(out, thought)
            out.content(text.lstrip("\n") if keeps else (view.text if view.calls else text))
        if view.calls:
            out.control(CALLS)
            self._write_calls_only(out, view)
        else:
            out.control(EOS)

    def write_generation_prompt(self, out: Writer, conversation: Conversation) -> None:
        """Open the assistant turn inside reasoning, except behind results."""
        if not self._ends_in_results(conversation):
            out.control(ASSISTANT)
            out.control(THINK)
            out.text("\n")

    def write_result(self, out: Writer, state: State, view: MessageView) -> None:
        """Write a result; the first of the conversation opens the block, and nothing stands before the others."""
        if not state.answered:
            out.control(RESULTS)
        DeepSeekFormat.write_result(self, out, state, view)

    def rewrites_history(self, conversation: Conversation) -> bool:
        """As the other templates, and every turn of calls but the first is written without its opening."""
        sampled = conversation.sampled
        if sampled is not None and self.options.thinking_retention != "all":
            controls = sampled.grammar.controls
            if controls[CALL] in sampled.prompt_ids and controls[CALL] in sampled.completion_ids:
                return True
        return DeepSeekFormat.rewrites_history(self, conversation)

    def _write_calls_only(self, out: Writer, view: MessageView) -> None:
        codec = self.tool_codec
        assert isinstance(codec, FencedCodec)
        for n, call in enumerate(view.calls):
            codec.write_call(out, call, first=n == 0)
        out.control(END_CALLS)
        out.control(EOS)

    def _write_thought(self, out: Writer, thought: str) -> None:
        out.control(THINK)
        out.text("\n")
        out.content(thought.strip("\n"))
        out.text("\n")
        out.control(END_THINK)
        out.text("\n\n")


def split_reasoning(view: MessageView) -> tuple[str, str]:
    """Return reasoning and content; the content before the last `</think>` is reasoning, as the template sees it."""
    before, closed, text = view.text.rpartition(END_THINK)
    inline = before.rpartition(THINK)[2] if closed else ""
    return view.reasoning or inline, text


def create_v3(tokenizer: Tokenizer, options: DeepSeekOptions) -> ChatRenderer:
    """Create the `deepseek-v3` renderer."""
    return ChatRenderer("deepseek-v3", tokenizer, V3Format(options), (*TURN_TOKENS, *TOOL_TOKENS))


def create_r1(tokenizer: Tokenizer, options: DeepSeekOptions) -> ChatRenderer:
    """Create the `deepseek-r1` renderer."""
    return ChatRenderer("deepseek-r1", tokenizer, R1Format(options), (*TURN_TOKENS, *TOOL_TOKENS, *THINK_TOKENS))
