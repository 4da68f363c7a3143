"""What every renderer of core shares: ids of a render, parsing from where the prompt left off, the bridged head."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

from prl.contracts import StreamParser
from prl.parse import Grammar, ReasoningState
from prl.types import NO_MESSAGE, Kind, Message, ParsedResponse, RenderedTokens, RenderError, Span, ToolSpec

_SCAFFOLD, _SAMPLED = Kind.SCAFFOLD, Kind.SAMPLED


class Tail(NamedTuple):
    """What a bridge puts behind a sampled turn: ids, their spans, and the roles of the new messages."""

    ids: list[int]
    spans: list[Span]
    roles: tuple[str, ...]


class BaseRenderer(ABC):
    """A renderer with a completion grammar; `_prompt_state` is where its own generation prompt leaves off."""

    name: str
    _grammar: Grammar
    _prompt_state: ReasoningState

    @abstractmethod
    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSpec] | None = None,
        add_generation_prompt: bool = False,
    ) -> RenderedTokens:
        """Turn a conversation into ids and spans; raise `RenderError` naming the message index."""

    @abstractmethod
    def create_parser(
        self, begin: ReasoningState, tools: Sequence[ToolSpec] | None, prompt_ids: Sequence[int] | None
    ) -> StreamParser:
        """Return the parser of one completion that begins in this state."""

    @abstractmethod
    def _bridge(
        self,
        sampled: tuple[Sequence[int], Sequence[int]],
        new_messages: Sequence[Message],
        tools: Sequence[ToolSpec] | None,
        history: Sequence[Message] | None,
        base: int,
    ) -> Tail | None:
        """Write what follows a sampled turn, its prompt's ids and its own; None where the past may not stay as it is.

        The spans count from `base`.
        """

    def bridge_to_next_turn(
        self,
        prompt_ids: Sequence[int],
        completion_ids: Sequence[int],
        new_messages: Sequence[Message],
        *,
        tools: Sequence[ToolSpec] | None = None,
        history: Sequence[Message] | None = None,
    ) -> RenderedTokens | None:
        """Extend a rollout verbatim by new messages, or None where the template would rewrite what came before.

        With `PromptIds` the cost of a turn does not depend on the rollout's length.
        """
        start = len(prompt_ids)
        end = start + len(completion_ids)
        tail = self._bridge((prompt_ids, completion_ids), new_messages, tools, history, end)
        if tail is None:
            return None
        head = [Span(0, start, NO_MESSAGE, _SCAFFOLD), Span(start, end, NO_MESSAGE, _SAMPLED)]
        spans = [span for span in head if span.end > span.start] + tail.spans
        return RenderedTokens.extending(prompt_ids, completion_ids, tail.ids, spans, tail.roles)

    def render_ids(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSpec] | None = None,
        add_generation_prompt: bool = False,
    ) -> list[int]:
        """Return the ids of `render`, without spans."""
        return self.render(messages, tools=tools, add_generation_prompt=add_generation_prompt).token_ids

    def parse_response(
        self,
        completion_ids: Sequence[int],
        *,
        tools: Sequence[ToolSpec] | None = None,
        prompt_ids: Sequence[int] | None = None,
    ) -> ParsedResponse:
        """Read a completion; never raises on any id sequence. `prompt_ids` tell whether reasoning was open."""
        given: Any = completion_ids
        if given is None or isinstance(given, str):
            raise RenderError(
                f"the completion is a {type(given).__name__}, not token ids",
                where="parse_response(completion_ids)",
                next_step="give the ids that the engine sampled; a text is no record of them",
            )
        parser = self.stream_parser(tools=tools, prompt_ids=prompt_ids)
        parser.feed(completion_ids)
        return parser.finish()

    def stream_parser(
        self, *, tools: Sequence[ToolSpec] | None = None, prompt_ids: Sequence[int] | None = None
    ) -> StreamParser:
        """Return a parser for one completion that arrives in pieces."""
        state = self._prompt_state if prompt_ids is None else self._grammar.state_after(prompt_ids)
        return self.create_parser(state, tools, prompt_ids)
