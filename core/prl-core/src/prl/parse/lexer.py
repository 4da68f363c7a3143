"""Token ids to text and markers, in any chunking."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from operator import itemgetter
from typing import NamedTuple

from prl.parse.grammar import Grammar, Mark

_Utf8Decoder = codecs.getincrementaldecoder("utf-8")
_UNKNOWN = "\ufffd".encode()


class Event(NamedTuple):
    """A stretch of text (`mark` is None) or a marker with its spelling, and its tokens: `position <= i < end`."""

    mark: Mark | None
    text: str
    position: int
    end: int


_new = tuple.__new__  # half the cost of Event(...)


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
        self._places: list[int] = []

    def feed(self, ids: Sequence[int]) -> list[Event]:
        """Return what became certain. Text that may be the beginning of a spelled-out marker is held back."""
        marks, lowest = self._grammar.marks, self._grammar.lowest_mark
        spelled = self._spell(ids)
        events: list[Event] = []
        begin = 0
        for position in [n for n, token in enumerate(ids) if token >= lowest and token in marks]:
            if position > begin or self._open:
                self._text(events, spelled[begin:position], begin, final=True)
            mark, text = marks[ids[position]]
            place = self.position + position
            events.append(_new(Event, (mark, text, place, place + 1)))
            begin = position + 1
        if begin < len(spelled):
            self._text(events, spelled[begin:], begin, final=False)
            self._open = True
        self.position += len(ids)
        return events

    def _spell(self, ids: Sequence[int]) -> Sequence[bytes]:
        """Return the bytes of every id."""
        table = self._grammar.token_bytes
        try:
            if len(ids) > 1 and min(ids) >= 0:
                spelled: tuple[bytes, ...] = itemgetter(*ids)(table)  # one call for all of them
                return spelled
        except IndexError:
            pass
        return [table[token] if 0 <= token < len(table) else _UNKNOWN for token in ids]

    def finish(self) -> list[Event]:
        """Return what was held back."""
        events: list[Event] = []
        self._text(events, [], 0, final=True)
        return events

    def _text(self, events: list[Event], spelled: Sequence[bytes], begin: int, *, final: bool) -> None:
        """Decode a stretch of ordinary tokens.

        Only where markers are spelled in text does each character need its token.
        """
        self._open = False
        position = self.position + begin
        if self._grammar.text_pattern is None:
            text = self._decoder.decode(b"".join(spelled), final)
            if text:
                events.append(_new(Event, (None, text, position, position + len(spelled))))
            return
        for n, data in enumerate(spelled):
            self._hold(self._decoder.decode(data), position + n)
        if final:
            self._hold(self._decoder.decode(b"", True), self.position + begin + len(spelled))
        self._search(events, final=final)

    def _hold(self, text: str, place: int) -> None:
        self._held += text
        self._places += [place] * len(text)

    def _search(self, events: list[Event], *, final: bool) -> None:
        """Find markers in the text that is held; keep back what may be the beginning of one."""
        pattern = self._grammar.text_pattern
        assert pattern is not None
        text, cursor = self._held, 0
        for match in pattern.finditer(text):
            self._release(events, None, cursor, match.start())
            self._release(events, self._grammar.text_marks[match.group()], match.start(), match.end())
            cursor = match.end()
        end = len(text) if final else len(text) - self._undecided(text[cursor:])
        self._release(events, None, cursor, end)
        self._held, self._places = text[end:], self._places[end:]

    def _release(self, events: list[Event], mark: Mark | None, start: int, end: int) -> None:
        if end > start:
            events.append(Event(mark, self._held[start:end], self._places[start], self._places[end - 1] + 1))

    def _undecided(self, text: str) -> int:
        """Length of the longest end of `text` that begins a spelled-out marker."""
        markers = self._grammar.text_marks
        longest = max(len(marker) for marker in markers) - 1
        for size in range(min(longest, len(text)), 0, -1):
            end = text[-size:]
            if any(marker.startswith(end) for marker in markers):
                return size
        return 0
