"""Token ids to text and markers, in any chunking."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from prl.parse.grammar import Grammar, Mark

_UNKNOWN = "\ufffd".encode()


class Event(NamedTuple):
    """A stretch of text (`mark` is None) or a marker with its spelling; `position` is the index of its first token."""

    mark: Mark | None
    text: str
    position: int


class Lexer:
    """Decodes one completion; `position` is the number of ids read.

    Bytes of a character may arrive in several chunks; ids outside the vocabulary become U+FFFD.
    """

    def __init__(self, grammar: Grammar) -> None:
        self._grammar = grammar
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.position = 0
        self._held = ""
        self._held_at = 0

    def feed(self, ids: Sequence[int]) -> Iterator[Event]:
        """Yield what became certain. Text that may be the beginning of a spelled-out marker is held back."""
        marks = self._grammar.marks
        begin = 0
        for position in [n for n, token in enumerate(ids) if token in marks]:
            yield from self._text(ids[begin:position], begin, final=True)
            token = ids[position]
            yield Event(marks[token], self._spell((token,)).decode("utf-8", "replace"), self.position + position)
            begin = position + 1
        yield from self._text(ids[begin:], begin, final=False)
        self.position += len(ids)

    def finish(self) -> Iterator[Event]:
        """Yield what was held back."""
        yield from self._text((), 0, final=True)

    def _spell(self, ids: Sequence[int]) -> bytes:
        table = self._grammar.token_bytes
        if ids and (min(ids) < 0 or max(ids) >= len(table)):
            return b"".join([table[token] if 0 <= token < len(table) else _UNKNOWN for token in ids])
        return b"".join([table[token] for token in ids])

    def _text(self, ids: Sequence[int], begin: int, *, final: bool) -> Iterator[Event]:
        text = self._decoder.decode(self._spell(ids), final)
        position = self.position + begin
        pattern = self._grammar.text_pattern
        if pattern is None:
            if text:
                yield Event(None, text, position)
            return
        if self._held:
            text, position = self._held + text, self._held_at
            self._held = ""
        cursor = 0
        for match in pattern.finditer(text):
            if match.start() > cursor:
                yield Event(None, text[cursor : match.start()], position)
            yield Event(self._grammar.text_marks[match.group()], match.group(), position)
            cursor = match.end()
        rest = text[cursor:]
        keep = 0 if final else self._undecided(rest)
        if len(rest) > keep:
            yield Event(None, rest[: len(rest) - keep], position)
        if keep:
            self._held, self._held_at = rest[len(rest) - keep :], position

    def _undecided(self, text: str) -> int:
        """Length of the longest end of `text` that begins a spelled-out marker."""
        markers = self._grammar.text_marks
        longest = max(len(marker) for marker in markers) - 1
        for size in range(min(longest, len(text)), 0, -1):
            end = text[-size:]
            if any(marker.startswith(end) for marker in markers):
                return size
        return 0
