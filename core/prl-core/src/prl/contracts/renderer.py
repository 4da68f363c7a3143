"""The renderer: messages to ids, ids to a message, and the bridge between turns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from prl.types import Message, ParseDelta, ParsedResponse, RenderedTokens, ToolSpec


@runtime_checkable
class StreamParser(Protocol):
    """Reads a completion as it arrives; any chunking ends in the message of `parse_response`.

    `last_deltas` holds, after `finish`, what only the end decided; all deltas together are the message.
    """

    last_deltas: list[ParseDelta]

    def feed(self, ids: Sequence[int]) -> list[ParseDelta]:
        """Take the next ids; return what became certain."""
        ...

    def finish(self) -> ParsedResponse:
        """End the completion; return the whole message. Call once."""
        ...


@runtime_checkable
class Renderer(Protocol):
    """One model family's format. Thread-safe; never mutates what it is given."""

    name: str

    @property
    def is_prefix_stable(self) -> bool:
        """Whether full renders of completed turns stay prefixes when turns are appended."""
        ...

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSpec] | None = None,
        add_generation_prompt: bool = False,
    ) -> RenderedTokens:
        """Turn a conversation into ids and spans; raise `RenderError` naming the message index."""
        ...

    def render_ids(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSpec] | None = None,
        add_generation_prompt: bool = False,
    ) -> list[int]:
        """Return the ids of `render`, without spans."""
        ...

    def bridge_to_next_turn(
        self,
        prompt_ids: Sequence[int],
        completion_ids: Sequence[int],
        new_messages: Sequence[Message],
        *,
        tools: Sequence[ToolSpec] | None = None,
        history: Sequence[Message] | None = None,
    ) -> RenderedTokens | None:
        """Extend a rollout: `prompt_ids + completion_ids`, then the new messages and a generation prompt.

        Message indices refer to `new_messages`; earlier tokens have -1. `prompt_ids` need not be a list: sessions give
        `PromptIds`, which are read and joined as lists are. `history`, if given, is the conversation up to and
        including the sampled assistant turn. None where an extension cannot be proven equal to what the template's
        rules allow; the caller then renders anew and starts a new sample.
        """
        ...

    def parse_response(
        self,
        completion_ids: Sequence[int],
        *,
        tools: Sequence[ToolSpec] | None = None,
        prompt_ids: Sequence[int] | None = None,
    ) -> ParsedResponse:
        """Read a completion; never raises on any id sequence. `prompt_ids` tell whether reasoning was open."""
        ...

    def stream_parser(
        self, *, tools: Sequence[ToolSpec] | None = None, prompt_ids: Sequence[int] | None = None
    ) -> StreamParser:
        """Return a parser for one completion that arrives in pieces."""
        ...

    def get_stop_token_ids(self) -> list[int]:
        """Return the ids that end an assistant turn."""
        ...
