"""What a family says about its format. Core does everything else."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from prl.contracts import ReasoningCodec, StreamParser, ToolCodec
from prl.parse import CompletionParser, Grammar, ReasoningState
from prl.render.conversation import Conversation, MessageView
from prl.render.options import RendererOptions
from prl.render.writer import Writer
from prl.types import ToolSpec


class ChatFormat(ABC):
    """One family's format, as pieces.

    turn_opener: the control token that begins every turn (where the search for open reasoning in a prompt ends).
    stop_tokens: control tokens that end an assistant turn; the first is the template's own close.
    reasoning, tool_codec: the family's codecs, None where it has none.
    content_strip: characters the template strips from both ends of assistant content (None: white space, "": nothing).
    strips_content_end: whether it strips white space from the end only.
    media: kinds of content parts other than text that the family takes ("image", "video").
    reasoning_placeholder: the reasoning markers that the template leaves where it drops reasoning, if any.
    replaces_stop: whether the template closes an earlier turn by another token than the one that was sampled, so that
        nothing stands between a sampled stop and the next message.
    quirks: checks of the conformance kit that the vendor's own format cannot pass, with the reason.
    """

    turn_opener: ClassVar[str]
    stop_tokens: ClassVar[tuple[str, ...]]
    reasoning: ReasoningCodec | None = None
    tool_codec: ToolCodec | None = None
    content_strip: ClassVar[str | None] = ""
    strips_content_end: ClassVar[bool] = False
    media: ClassVar[frozenset[str]] = frozenset()
    reasoning_placeholder: ClassVar[tuple[str, ...]] = ()
    replaces_stop: ClassVar[bool] = False
    quirks: ClassVar[Mapping[str, str]] = {}

    def __init__(self, options: RendererOptions) -> None:
        self.options = options

    def check(self, conversation: Conversation) -> None:  # noqa: B027 (most formats have nothing to refuse)
        """Raise `RenderError` for conversations that the vendor's template refuses, or would drop a message of.

        Judge `conversation.new` alone: in a bridge (`is_bridge`) what came before may be unknown.
        """

    @abstractmethod
    def write_preamble(self, out: Writer, conversation: Conversation) -> None:
        """Write what stands before the first message (BOS, tools, a default system turn)."""

    @abstractmethod
    def write_message(self, out: Writer, conversation: Conversation, position: int) -> None:
        """Write `conversation.messages[position]`, the same for renders and bridges."""

    @abstractmethod
    def write_generation_prompt(self, out: Writer, conversation: Conversation) -> None:
        """Open the assistant turn that is to be sampled."""

    def can_bridge(self, conversation: Conversation, stop: str | None) -> bool:
        """Whether the new messages can follow, knowing only `messages[:first]` of what came before.

        `stop` is the control token that ended the sampled turn, None where it was cut off.
        """
        return True

    def rewrites_history(self, conversation: Conversation) -> bool:
        """Whether the new messages of a bridge make the template write `conversation.sampled` or what precedes it anew.

        Here: a new query drops reasoning that the ids contain; its placeholder stays as it is.
        """
        sampled = conversation.sampled
        if sampled is None or not self.drops_reasoning:
            return False
        if not any(self.is_query(view) for view in conversation.new):
            return False
        return sampled.holds_reasoning(self.reasoning_placeholder)

    def write_close(self, out: Writer, conversation: Conversation) -> bool:
        """Write what closes a sampled turn that was cut off; False leaves it to the engine.

        The engine closes open reasoning, then writes the close of a whole turn. Formats whose turns have several
        messages know better.
        """
        return False

    def create_parser(
        self,
        grammar: Grammar,
        begin: ReasoningState,
        tools: Sequence[ToolSpec] | None,
        *,
        offset: int,
        prompt_ids: Sequence[int] | None = None,
    ) -> StreamParser:
        """Return the parser of one completion. `offset` is the number of tokens before it, `prompt_ids` those tokens.

        A family whose completions are not "reasoning, content, calls" between markers brings its own.
        """
        is_inside = grammar.ends_behind_marker(prompt_ids)
        return CompletionParser(grammar, begin, tools, offset=offset, is_inside=is_inside)

    def is_query(self, message: MessageView) -> bool:
        """Whether a message begins a new query, after which the template may drop earlier reasoning."""
        return message.role == "user"

    @property
    def reads_history(self) -> bool:
        """Whether writing new messages depends on more of the past than the sampled turn itself."""
        return False

    @property
    def is_prefix_stable(self) -> bool:
        """Whether full renders of completed turns stay prefixes when turns are appended."""
        return False

    @property
    def drops_reasoning(self) -> bool:
        """Whether a new query makes the template rewrite earlier turns' reasoning, under this format's options."""
        return self.reasoning is not None and self.options.thinking_retention != "all"
