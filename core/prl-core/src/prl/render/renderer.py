"""The renderer of every family that describes itself as a `ChatFormat`: render, bridge, parse."""

from __future__ import annotations

from collections.abc import Sequence

from prl.contracts import StreamParser
from prl.parse import Grammar, ReasoningState
from prl.render.base import BaseRenderer, Tail
from prl.render.conversation import (
    Conversation,
    MessageView,
    SampledTurn,
    refuse_media,
    view_messages,
    view_tools,
)
from prl.render.format import ChatFormat
from prl.render.runs import RunEncoder
from prl.render.writer import Piece, Writer
from prl.tokenizer import Tokenizer
from prl.types import (
    NO_MESSAGE,
    Kind,
    Message,
    RenderedTokens,
    RenderError,
    TokenizerError,
    ToolSpec,
)

_SAMPLED = int(Kind.SAMPLED)


class ChatRenderer(BaseRenderer):
    """One format on one tokenizer. Thread-safe; holds no conversation."""

    def __init__(self, name: str, tokenizer: Tokenizer, chat_format: ChatFormat, control_tokens: Sequence[str]) -> None:
        self.name = name
        self.tokenizer = tokenizer
        self.format = chat_format
        self._controls = control_ids(name, tokenizer, control_tokens)
        self._encoder = RunEncoder(tokenizer)
        self._stop_ids = [self._controls[token] for token in chat_format.stop_tokens]
        self._grammar = Grammar.build(
            tokenizer,
            opener=self._controls[chat_format.turn_opener],
            stop_ids=self._stop_ids,
            reasoning=chat_format.reasoning,
            tool_codec=chat_format.tool_codec,
            content_strip=chat_format.content_strip,
            strips_content_end=chat_format.strips_content_end,
            controls=self._controls,
        )
        self._turn_end = self._find_turn_end()
        self._prompt_pieces = self._generation_pieces(Conversation([]))
        prompt, _ = self._encoder.assemble(self._prompt_pieces)
        self._prompt_state = self._grammar.state_after(prompt)

    @property
    def is_prefix_stable(self) -> bool:
        """Whether full renders of completed turns stay prefixes when turns are appended."""
        return self.format.is_prefix_stable

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSpec] | None = None,
        add_generation_prompt: bool = False,
    ) -> RenderedTokens:
        """Turn a conversation into ids and spans; raise `RenderError` naming the message index."""
        conversation = Conversation(view_messages(messages), view_tools(tools), has_prompt=add_generation_prompt)
        if not conversation.messages:
            raise RenderError(
                "there are no messages to render", where="messages", next_step="give at least one message"
            )
        refuse_media(self.name, conversation.messages, self.format.media)
        self.format.check(conversation)
        out = self._writer()
        self.format.write_preamble(out, conversation)
        for position in range(len(conversation.messages)):
            start = len(out.pieces)
            self.format.write_message(out, conversation, position)
            if conversation.role(position) == "assistant":
                unsample_prompt(out.pieces, start, self._prompt_pieces)
        if add_generation_prompt:
            out.begin(None)
            self.format.write_generation_prompt(out, conversation)
        ids, spans = self._encoder.assemble(out.pieces)
        return RenderedTokens(ids, spans, tuple([view.role for view in conversation.messages]))

    def _bridge(
        self,
        sampled: tuple[Sequence[int], Sequence[int]],
        new_messages: Sequence[Message],
        tools: Sequence[ToolSpec] | None,
        history: Sequence[Message] | None,
        base: int,
    ) -> Tail | None:
        """Extend a rollout verbatim by new messages, or None where the template would rewrite what came before."""
        prompt_ids, completion_ids = sampled
        views = view_messages(new_messages)
        if not views or any(view.role == "assistant" for view in views):
            return None
        stop = completion_ids[-1] if completion_ids and completion_ids[-1] in self._stop_ids else None
        stop_name = None if stop is None else self.format.stop_tokens[self._stop_ids.index(stop)]
        turn = SampledTurn(prompt_ids, completion_ids, stop_name, self._grammar)
        earlier = self._earlier(history)
        conversation = Conversation(
            earlier + views, view_tools(tools), len(earlier), is_bridge=True, sampled=turn, has_prompt=True
        )
        refuse_media(self.name, conversation.messages, self.format.media)
        self.format.check(conversation)
        if self.format.rewrites_history(conversation) or not self.format.can_bridge(conversation, stop_name):
            return None
        out = self._writer()
        for position in range(conversation.first, len(conversation.messages)):
            self.format.write_message(out, conversation, position)
        out.begin(None)
        self.format.write_generation_prompt(out, conversation)
        pieces = [*self._closing_pieces(conversation, turn), *out.pieces]
        if stop is not None and pieces[0][0] == stop:
            del pieces[0]  # the model stopped on the token that opens the next turn, and sampled it
        return Tail(*self._encoder.assemble(pieces, base), tuple([view.role for view in views]))

    def create_parser(
        self, begin: ReasoningState, tools: Sequence[ToolSpec] | None, prompt_ids: Sequence[int] | None
    ) -> StreamParser:
        """Return the format's parser."""
        offset = len(prompt_ids) if prompt_ids is not None else 0
        return self.format.create_parser(self._grammar, begin, tools, offset=offset, prompt_ids=prompt_ids)

    def get_stop_token_ids(self) -> list[int]:
        """Return the ids that end an assistant turn; the first is the template's own close."""
        return list(self._stop_ids)

    def _earlier(self, history: Sequence[Message] | None) -> list[MessageView]:
        """Return what a format may see of the past: all of it if it reads that, else the sampled turn only."""
        if not history:
            return [MessageView(NO_MESSAGE, "assistant", "")]
        start = 0 if self.format.reads_history else len(history) - 1
        return view_messages(history[start:], start=start)

    def _writer(self) -> Writer:
        return Writer(self._controls, self.format.options.content_tokens, self.tokenizer.added_pattern)

    def _generation_pieces(self, conversation: Conversation) -> list[Piece]:
        out = self._writer()
        self.format.write_generation_prompt(out, conversation)
        return out.pieces

    def _find_turn_end(self) -> tuple[list[Piece], list[Piece]]:
        """Return the close of an assistant turn and what follows it, by writing an empty one that another turn follows.

        The close is scaffold here: where a bridge has to add it, nobody sampled it.
        """
        if self.format.replaces_stop:
            return [], []
        out = self._writer()
        neighbours = [MessageView(NO_MESSAGE, "assistant", ""), MessageView(NO_MESSAGE, "user", "")]
        self.format.write_message(out, Conversation(neighbours, is_bridge=True), 0)
        sampled = (n for n, (*_, kind, _) in enumerate(out.pieces) if kind & _SAMPLED)
        last = max(sampled, default=len(out.pieces) - 1)
        close, tail = out.pieces[last : last + 1], out.pieces[last + 1 :]
        return [_with_kind(piece, int(Kind.SCAFFOLD)) for piece in close if piece[0] in self._stop_ids], tail

    def _closing_pieces(self, conversation: Conversation, sampled: SampledTurn) -> list[Piece]:
        """Return what stands between the completion and the next message.

        One close where the turn was cut, never two.
        """
        close, tail = self._turn_end
        if sampled.stop is not None:
            return tail
        out = self._writer()
        if self.format.write_close(out, conversation):
            return [*out.pieces, *tail]
        pieces = [*close, *tail]
        codec = self.format.reasoning
        state = self._grammar.state_after(sampled.prompt_ids, sampled.completion_ids)
        if codec is not None and state is ReasoningState.OPEN:
            out.text(codec.before_close)
            out.control(codec.close)
            out.text(codec.after_close)
            pieces = out.pieces + pieces
        return pieces


def unsample_prompt(pieces: list[Piece], start: int, prompt: Sequence[Piece]) -> None:
    """Make scaffold of an assistant turn's beginning where it is the generation prompt.

    The model never samples that.
    """
    position = start
    for expected in prompt:
        if position == len(pieces):
            return
        control, text, owner, kind, literal = pieces[position]
        opening = expected[1]
        if control != expected[0] or not text.startswith(opening):
            return
        if len(text) > len(opening):
            if expected is not prompt[-1]:
                return
            parts = (opening, text[len(opening) :])
            pieces[position : position + 1] = [(control, part, owner, kind, literal) for part in parts]
        position += 1
    for n in range(start, position):
        kind = pieces[n][3]
        if kind & _SAMPLED:
            pieces[n] = _with_kind(pieces[n], kind & ~_SAMPLED)


def _with_kind(piece: Piece, kind: int) -> Piece:
    control, text, owner, _, literal = piece
    return control, text, owner, kind, literal


def control_ids(name: str, tokenizer: Tokenizer, tokens: Sequence[str]) -> dict[str, int]:
    """Return the ids of a renderer's control tokens, or raise `TokenizerError` naming those the tokenizer lacks."""
    found = {token: tokenizer.token_id(token) for token in tokens}
    missing = [token for token, token_id in found.items() if token_id is None]
    if missing:
        raise TokenizerError(
            f"the tokenizer lacks control tokens that renderer {name!r} needs: {' '.join(missing)}",
            where=f"tokenizer {tokenizer.name_or_path or '(unnamed)'}",
            next_step='use the tokenizer and the renderer of one model family (renderer = "auto" picks by model id)',
        )
    return {token: token_id for token, token_id in found.items() if token_id is not None}
