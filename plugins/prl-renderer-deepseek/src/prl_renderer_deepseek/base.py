"""What the chat templates of V3, R1 and V3.1 share. FORMAT.md is the grammar in prose."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from prl.render import ChatFormat, Conversation, MessageView, Writer, bad_message
from prl_renderer_deepseek.tokens import (
    ASSISTANT,
    BOS,
    CALL,
    END_RESULT,
    EOS,
    RESULT,
    THINK,
    USER,
)

_ROLES = frozenset({"system", "user", "assistant", "tool"})
NO_TOOLS = "the vendor's template has no place for tools; describe them in the system message"


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
    quirks: ClassVar[Mapping[str, str]] = {"nothing_is_dropped": NO_TOOLS}

    @property
    def is_prefix_stable(self) -> bool:
        """Reasoning never stands in a finished turn, so nothing of it changes, unless a query drops it."""
        return self.options.thinking_retention != "tool_cycle" or self.reasoning is None

    def check(self, conversation: Conversation) -> None:
        """Refuse roles that the template does not know (it would drop such messages without a word)."""
        for view in conversation.new:
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
        return all(view.role != "system" for view in conversation.new)

    def rewrites_history(self, conversation: Conversation) -> bool:
        """The templates drop a turn's reasoning as soon as anything follows it, results included."""
        sampled, retention = conversation.sampled, self.options.thinking_retention
        if sampled is None or self.reasoning is None or retention == "all":
            return False
        if retention == "tool_cycle" and not any(map(self.is_query, conversation.new)):
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
