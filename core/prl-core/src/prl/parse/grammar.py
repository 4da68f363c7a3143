"""What a parser needs to know of a format.

Markers, stops and white space, as token ids where the vocabulary has them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from prl.contracts import ReasoningCodec, ToolCodec
from prl.tokenizer import Tokenizer


class ReasoningState(Enum):
    """Where a completion begins: inside reasoning, after it, or not known before the first marker."""

    OPEN = "open"
    CLOSED = "closed"
    UNDECIDED = "undecided"


class Mark(Enum):
    """What a marker means."""

    THINK = "think"
    END_THINK = "end_think"
    CALL = "call"
    END_CALL = "end_call"
    STOP = "stop"


_NO_MARK = (None, "")


@dataclass(frozen=True)
class Grammar:
    """One format's completion grammar on one tokenizer.

    `marks` are markers with an id of their own and their spelling; `text_marks` those that the vocabulary spells in
    ordinary tokens, found in the text by `text_pattern`. `controls` are the renderer's control tokens, for formats that
    bring their own parser.
    """

    marks: Mapping[int, tuple[Mark, str]]
    text_marks: Mapping[str, Mark]
    text_pattern: re.Pattern[str] | None
    reasoning: ReasoningCodec | None
    tool_codec: ToolCodec | None
    content_strip: str | None
    opener: int
    token_bytes: Sequence[bytes]
    lowest_mark: int
    reasoning_ids: tuple[int, ...]
    controls: Mapping[str, int] = field(default_factory=dict)
    strips_content_end: bool = False

    @classmethod
    def build(
        cls,
        tokenizer: Tokenizer,
        *,
        opener: int,
        stop_ids: Sequence[int],
        reasoning: ReasoningCodec | None,
        tool_codec: ToolCodec | None,
        content_strip: str | None,
        controls: Mapping[str, int] | None = None,
        strips_content_end: bool = False,
    ) -> Grammar:
        """Look the markers up in the tokenizer."""
        wanted: list[tuple[str, Mark]] = []
        if reasoning is not None:
            wanted += [(reasoning.open, Mark.THINK), (reasoning.close, Mark.END_THINK)]
        if tool_codec is not None:
            wanted += [(tool_codec.open, Mark.CALL), (tool_codec.close, Mark.END_CALL)]
        table = tokenizer.token_bytes
        marks = {token: (Mark.STOP, table[token].decode("utf-8", "replace")) for token in stop_ids}
        text_marks: dict[str, Mark] = {}
        for marker, mark in wanted:
            token = tokenizer.token_id(marker)
            if token is None:
                text_marks[marker] = mark
            else:
                marks.setdefault(token, (mark, marker))
        spellings = getattr(tool_codec, "spellings", {})
        text_marks.update((text, Mark.CALL if opens else Mark.END_CALL) for text, opens in spellings.items())
        longest_first = sorted(text_marks, key=len, reverse=True)
        return cls(
            marks=marks,
            text_marks=text_marks,
            text_pattern=re.compile("|".join(map(re.escape, longest_first))) if longest_first else None,
            reasoning=reasoning,
            tool_codec=tool_codec,
            content_strip=content_strip,
            opener=opener,
            token_bytes=table,
            lowest_mark=min(marks, default=0),  # control tokens mostly come last: one comparison skips ordinary tokens
            reasoning_ids=tuple(i for i, (mark, _) in marks.items() if mark in (Mark.THINK, Mark.END_THINK)),
            controls=controls or {},
            strips_content_end=strips_content_end,
        )

    def ends_behind_marker(self, prompt_ids: Sequence[int] | None) -> bool:
        """Whether a prompt goes on behind its last reasoning marker, with the template's white space for instance."""
        return bool(prompt_ids) and prompt_ids[-1] not in self.reasoning_ids  # type: ignore[index]

    def state_after(self, *id_lists: Sequence[int]) -> ReasoningState:
        """Return where the next token stands: look back through the ids to the last reasoning marker of this turn.

        An end marker without a beginning counts: reasoning that the model wrote without opening it is still reasoning.
        """
        if self.reasoning is None:
            return ReasoningState.CLOSED
        for ids in reversed(id_lists):
            for token in reversed(ids):
                if token == self.opener:
                    return ReasoningState.UNDECIDED
                mark, _ = self.marks.get(token, _NO_MARK)
                if mark is Mark.THINK:
                    return ReasoningState.OPEN
                if mark is Mark.END_THINK:
                    return ReasoningState.CLOSED
        return ReasoningState.UNDECIDED
