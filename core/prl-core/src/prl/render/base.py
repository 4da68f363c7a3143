"""What every renderer of core shares: ids of a render, parsing from where the prompt left off, the bridged head."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from prl.contracts import StreamParser
from prl.parse import Grammar, ReasoningState
from prl.types import NO_MESSAGE, Kind, Message, ParsedResponse, RenderedTokens, Span, ToolSpec


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
        parser = self.stream_parser(tools=tools, prompt_ids=prompt_ids)
        parser.feed(completion_ids)
        return parser.finish()

    def stream_parser(
        self, *, tools: Sequence[ToolSpec] | None = None, prompt_ids: Sequence[int] | None = None
    ) -> StreamParser:
        """Return a parser for one completion that arrives in pieces."""
        state = self._prompt_state if prompt_ids is None else self._grammar.state_after(prompt_ids)
        return self.create_parser(state, tools, prompt_ids)


def extend(
    prompt_ids: Sequence[int],
    completion_ids: Sequence[int],
    tail: Sequence[int],
    tail_spans: Sequence[Span],
    roles: tuple[str, ...],
) -> RenderedTokens:
    """Return the bridged prompt: earlier ids verbatim, owned by no message, then what follows them."""
    start, end = len(prompt_ids), len(prompt_ids) + len(completion_ids)
    head = [Span(0, start, NO_MESSAGE, Kind.SCAFFOLD), Span(start, end, NO_MESSAGE, Kind.SAMPLED)]
    spans = [span for span in head if span.end > span.start]
    return RenderedTokens([*prompt_ids, *completion_ids, *tail], [*spans, *tail_spans], roles)
