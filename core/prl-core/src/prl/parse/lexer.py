"""Token ids to text and markers, in any chunking."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import NamedTuple

from prl.parse.grammar import Grammar, Mark

_Utf8Decoder = codecs.getincrementaldecoder("utf-8")
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
        self._decoder = _Utf8Decoder("replace")
        self.position = 0
        self._open = False
        self._held = ""
        self._held_at = 0

    def feed(self, ids: Sequence[int]) -> list[Event]:
        """Return what became certain. Text that may be the beginning of a spelled-out marker is held back."""
        marks = self._grammar.marks
        table = self._grammar.token_bytes
        if ids and (min(ids) < 0 or max(ids) >= len(table)):
            spelled = [table[token] if 0 <= token < len(table) else _UNKNOWN for token in ids]
        else:
            spelled = [table[token] for token in ids]
        events: list[Event] = []
        begin = 0
        for position in [n for n, token in enumerate(ids) if token in marks]:
            if position > begin or self._open:
                self._text(events, b"".join(spelled[begin:position]), begin, final=True)
            mark, text = marks[ids[position]]
            events.append(Event(mark, text, self.position + position))
            begin = position + 1
        if begin < len(spelled):
            self._text(events, b"".join(spelled[begin:]), begin, final=False)
            self._open = True
        self.position += len(ids)
        return events

    def finish(self) -> list[Event]:
        """Return what was held back."""
        events: list[Event] = []
        self._text(events, b"", 0, final=True)
        return events

    def _text(self, events: list[Event], data: bytes, begin: int, *, final: bool) -> None:
        text = self._decoder.decode(data, final)
        self._open = False
        position = self.position + begin
        if self._grammar.text_pattern is not None:
            self._search(events, text, position, final=final)
        elif text:
            events.append(Event(None, text, position))

    def _search(self, events: list[Event], text: str, position: int, *, final: bool) -> None:
        """Find markers that the vocabulary spells in ordinary tokens."""
        pattern = self._grammar.text_pattern
        assert pattern is not None
        if self._held:
            text, position = self._held + text, self._held_at
            self._held = ""
        cursor = 0
        for match in pattern.finditer(text):
            if match.start() > cursor:
                events.append(Event(None, text[cursor : match.start()], position))
            events.append(Event(self._grammar.text_marks[match.group()], match.group(), position))
            cursor = match.end()
        rest = text[cursor:]
        keep = 0 if final else self._undecided(rest)
        if len(rest) > keep:
            events.append(Event(None, rest[: len(rest) - keep], position))
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
