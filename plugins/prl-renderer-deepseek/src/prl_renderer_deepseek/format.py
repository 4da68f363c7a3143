"""DeepSeek-V3, R1 and V3.1: what their chat templates write. FORMAT.md is the grammar in prose."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from prl.contracts import ReasoningCodec, ToolCodec
from prl.render import ChatFormat, ChatRenderer, Conversation, MessageView, Writer, bad_message
from prl.tokenizer import Tokenizer
from prl_renderer_deepseek.options import DeepSeekOptions, V31Options
from prl_renderer_deepseek.reasoning import spaced_reasoning, tight_reasoning
from prl_renderer_deepseek.tokens import (
    ASSISTANT,
    BOS,
    CALL,
    CALLS,
    END_CALLS,
    END_RESULT,
    END_RESULTS,
    END_THINK,
    EOS,
    RESULT,
    RESULTS,
    THINK,
    THINK_TOKENS,
    TOOL_TOKENS,
    TURN_TOKENS,
    USER,
)
from prl_renderer_deepseek.tools import FencedCodec, InlineCodec

_ROLES = frozenset({"system", "user", "assistant", "tool"})
_NO_TOOLS = "the vendor's template has no place for tools; describe them in the system message"
_UNCLOSED = "the vendor's template writes calls beside no content only, and closes them from the second call on only"


@dataclass(frozen=True)
class State:
    """What a template remembers before a message: the `ns` variables of its source.

    after_results: tool results were the last thing written. after_user: a user message was. called, answered: whether
    any call, any result was written in the whole conversation.
    """

    after_results: bool = False
    after_user: bool = False
    called: bool = False
    answered: bool = False

    def after(self, view: MessageView, *, calls: bool) -> State:
        """Return the state after a message; `calls` says whether its calls are written."""
        if view.role == "user":
            return State(False, True, self.called, self.answered)
        if view.role == "tool":
            return State(True, False, self.called, True)
        if view.role == "assistant":
            return State(False, False, self.called or calls, self.answered)
        return self


class DeepSeekFormat(ChatFormat):
    """What V3, R1 and V3.1 share: system messages first, no line feeds, answers that continue behind results."""

    turn_opener: ClassVar[str] = ASSISTANT
    stop_tokens: ClassVar[tuple[str, ...]] = (EOS,)
    quirks: ClassVar[Mapping[str, str]] = {"nothing_is_dropped": _NO_TOOLS}

    @property
    def is_prefix_stable(self) -> bool:
        """Reasoning never stands in a finished turn, so nothing of it changes, unless a query drops it."""
        return self.options.thinking_retention != "tool_cycle" or self.reasoning is None

    def check(self, conversation: Conversation) -> None:
        """Refuse roles that the template does not know (it would drop such messages without a word)."""
        for view in conversation.messages:
            if view.role not in _ROLES:
                raise bad_message(
                    view.index,
                    f"has role {view.role!r}, which DeepSeek does not know",
                    f"use one of {', '.join(sorted(_ROLES))}",
                )

    def write_preamble(self, out: Writer, conversation: Conversation) -> None:
        """Write BOS and all system messages, wherever they stand, with a blank line between them."""
        out.begin(None)
        out.control(BOS)
        for n, view in enumerate([one for one in conversation.messages if one.role == "system"]):
            out.begin(view)
            if n:
                out.text("\n\n")
            out.content(view.text)

    def write_message(self, out: Writer, conversation: Conversation, position: int) -> None:
        """Write one message."""
        view = conversation.messages[position]
        out.begin(view)
        if view.role == "user":
            out.control(USER)
            out.content(view.text)
        elif view.role == "tool":
            self.write_result(out, self.state(conversation, position), view)
            if position == self._last(conversation):
                self.end_results(out)
        elif view.role == "assistant":
            self.write_assistant(out, conversation, position)
            out.end_sampled()

    @abstractmethod
    def write_assistant(self, out: Writer, conversation: Conversation, position: int) -> None:
        """Write an assistant turn, its opening included."""

    def write_result(self, out: Writer, state: State, view: MessageView) -> None:
        """Write a result."""
        out.control(RESULT)
        out.content(view.text)
        out.control(END_RESULT)

    def end_results(self, out: Writer) -> None:
        """Write what stands between results and what follows."""

    def write_calls(self, out: Writer, view: MessageView) -> None:
        """Write the calls of a turn as a whole block."""
        assert self.tool_codec is not None
        self.tool_codec.write(out, view.calls, after_text=bool(view.text))

    def has_calls(self, view: MessageView) -> bool:
        """Whether a turn's calls are written."""
        return bool(view.calls)

    def state(self, conversation: Conversation, position: int) -> State:
        """Return the state before a message."""
        if "states" not in conversation.memo:
            states = [self._first_state(conversation)]
            for view in conversation.messages:
                states.append(states[-1].after(view, calls=self.has_calls(view)))
            conversation.memo["states"] = states
        state: State = conversation.memo["states"][position]
        return state

    def keeps_reasoning(self, conversation: Conversation, position: int) -> bool:
        """Whether a turn's reasoning stands; the templates drop all of it."""
        retention = self.options.thinking_retention
        if retention == "tool_cycle":
            return all(not self.is_query(view) for view in conversation.messages[position + 1 :])
        return retention == "all"

    def can_bridge(self, conversation: Conversation, stop: str | None) -> bool:
        """A system message would have to go before everything else."""
        return all(view.role != "system" for view in conversation.messages[conversation.first :])

    def rewrites_history(self, conversation: Conversation) -> bool:
        """The templates drop a turn's reasoning as soon as anything follows it, results included."""
        sampled, retention = conversation.sampled, self.options.thinking_retention
        if sampled is None or self.reasoning is None or retention == "all":
            return False
        if retention == "tool_cycle" and not any(map(self.is_query, conversation.messages[conversation.first :])):
            return False
        opened = sampled.grammar.controls[THINK]
        return opened in sampled.prompt_ids or opened in sampled.completion_ids

    def _first_state(self, conversation: Conversation) -> State:
        """Return what stands before all messages; of a sampled turn, the ids tell what came before it."""
        sampled = conversation.sampled
        if sampled is None:
            return State()
        ids, controls = [*sampled.prompt_ids, *sampled.completion_ids], sampled.grammar.controls
        return State(False, False, controls[CALL] in ids, controls[RESULT] in ids)

    def _last(self, conversation: Conversation) -> int:
        """Return the position of the last message that is not a system message."""
        if "last" not in conversation.memo:
            found = [n for n, view in enumerate(conversation.messages) if view.role != "system"]
            conversation.memo["last"] = found[-1] if found else -1
        return int(conversation.memo["last"])


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
    quirks: ClassVar[Mapping[str, str]] = {"nothing_is_dropped": _NO_TOOLS}

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


def split_reasoning(view: MessageView) -> tuple[str, str]:
    """Return reasoning and content; the content before the last `</think>` is reasoning, as the template sees it."""
    before, closed, text = view.text.rpartition(END_THINK)
    inline = before.rpartition(THINK)[2] if closed else ""
    return view.reasoning or inline, text


_TOKENS: Mapping[str, tuple[str, ...]] = {
    "deepseek-v3": (*TURN_TOKENS, *TOOL_TOKENS),
    "deepseek-r1": (*TURN_TOKENS, *TOOL_TOKENS, *THINK_TOKENS),
}


def create_v3(tokenizer: Tokenizer, options: DeepSeekOptions) -> ChatRenderer:
    """Create the `deepseek-v3` renderer."""
    return ChatRenderer("deepseek-v3", tokenizer, V3Format(options), _TOKENS["deepseek-v3"])


def create_r1(tokenizer: Tokenizer, options: DeepSeekOptions) -> ChatRenderer:
    """Create the `deepseek-r1` renderer."""
    return ChatRenderer("deepseek-r1", tokenizer, R1Format(options), _TOKENS["deepseek-r1"])


def create_v31(tokenizer: Tokenizer, options: V31Options) -> ChatRenderer:
    """Create the `deepseek-v3.1` renderer."""
    return ChatRenderer("deepseek-v3.1", tokenizer, V31Format(options), _TOKENS["deepseek-r1"])
