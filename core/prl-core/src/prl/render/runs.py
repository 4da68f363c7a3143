"""Pieces to tokens: the text between two control tokens is joined and encoded in one call, then shared out again.

Joining first lets BPE merges cross piece borders as they do in the template's single pass. A token that straddles a
border belongs to the piece that holds its first byte.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Sequence

from prl.render.writer import Piece
from prl.tokenizer import Tokenizer
from prl.types import Kind, Span

_CACHE_CHARS = 8_000_000
_MARKED = "\0"
"""Before the key of a text that spells control tokens: such ids are never given to a run with literal text."""
_KINDS = tuple(Kind(value) for value in range(4))


class RunCache:
    """Encoded runs by text, bounded by characters: two generations, the older one dropped as a whole."""

    def __init__(self, max_chars: int = _CACHE_CHARS) -> None:
        self._half = max_chars // 2
        self._young: dict[str, list[int]] = {}
        self._old: dict[str, list[int]] = {}
        self._chars = 0
        self._lock = threading.Lock()

    def get(self, text: str) -> list[int] | None:
        """Return the ids of a text, or None. Callers never change the list."""
        ids = self._young.get(text)
        if ids is None:
            ids = self._old.get(text)
            if ids is not None:
                self.put(text, ids)
        return ids

    def put(self, text: str, ids: list[int]) -> None:
        """Keep the ids of a text."""
        with self._lock:
            if self._chars + len(text) > self._half:
                self._old, self._young, self._chars = self._young, {}, 0
            self._young[text] = ids
            self._chars += len(text)


Mark = tuple[int, Piece]
"""Where a piece's tokens end, and the piece."""

Group = tuple[list[Piece], str]
"""A run (its text pieces and their joined text) or one control token."""


class RunEncoder:
    """Encodes the runs of one tokenizer, with its cache."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._cache = RunCache()

    def assemble(self, pieces: Sequence[Piece], base: int = 0) -> tuple[list[int], list[Span]]:
        """Return the pieces' ids, and their spans for ids that begin at token `base`."""
        groups = _group(pieces)
        encoded = self._encode(groups)
        lossless = self._tokenizer.is_lossless
        ids: list[int] = []
        marks: list[Mark] = []
        for members, text in groups:
            first = members[0]
            if first[0] >= 0:
                ids.append(first[0])
                marks.append((len(ids), first))
                continue
            run_ids = encoded.get(text)
            if run_ids is None and not any(piece[4] for piece in members):
                run_ids = encoded.get(_MARKED + text)
            if len(members) == 1 and run_ids is not None:
                ids += run_ids
                marks.append((len(ids), first))
            elif run_ids is not None and lossless(text):
                self._add_shared(members, run_ids, len(ids), marks)
                ids += run_ids
            else:
                self._add_guarded(members, text, ids, marks)
        return ids, _spans(marks, base)

    def _encode(self, groups: list[Group]) -> dict[str, list[int]]:
        """Return ids by text, for every run that the tokenizer may encode as the vendor does."""
        known: dict[str, list[int]] = {}
        plain: dict[str, None] = {}
        marked: dict[str, None] = {}
        pattern = self._tokenizer.added_pattern
        for members, text in groups:
            if members[0][0] >= 0 or text in known or text in plain:
                continue
            ids = self._cache.get(text)
            if ids is not None:
                known[text] = ids
            elif pattern is None or pattern.search(text) is None:
                plain[text] = None
            elif not any(piece[4] for piece in members):
                ids = self._cache.get(_MARKED + text)
                if ids is None:
                    marked[text] = None
                else:
                    known[_MARKED + text] = ids
        if plain:
            self._add(known, list(plain), self._tokenizer.encode_ordinary_many(list(plain)))
        if marked:
            self._add(known, [_MARKED + text for text in marked], self._tokenizer.encode_many(list(marked)))
        return known

    def _add(self, known: dict[str, list[int]], keys: list[str], encoded: list[list[int]]) -> None:
        for key, ids in zip(keys, encoded, strict=True):
            known[key] = ids
            self._cache.put(key, ids)

    def _add_shared(self, members: list[Piece], run_ids: list[int], base: int, marks: list[Mark]) -> None:
        """Share a run's ids out by byte lengths, walking from both ends towards the longest piece."""
        lengths = self._tokenizer.byte_lengths
        sizes = [len(piece.text) for piece in members]
        longest = sizes.index(max(sizes))
        walked, taken, border = 0, 0, 0
        for piece in members[:longest]:
            border += len(piece.text.encode())
            while walked < border and taken < len(run_ids):
                walked += lengths[run_ids[taken]]
                taken += 1
            marks.append((base + taken, piece))
        walked, kept, border = 0, len(run_ids), 0
        tail: list[Mark] = []
        for piece in members[:longest:-1]:
            tail.append((base + kept, piece))
            border += len(piece.text.encode())
            while kept > taken and walked + lengths[run_ids[kept - 1]] <= border:
                kept -= 1
                walked += lengths[run_ids[kept]]
        marks.append((base + kept, members[longest]))
        marks += reversed(tail)

    def _add_guarded(self, members: list[Piece], text: str, ids: list[int], marks: list[Mark]) -> None:
        """Add a run by character offsets.

        Where literal text spells control tokens, or the normalizer changes the text.
        """
        starts = [0]
        for piece in members[:-1]:
            starts.append(starts[-1] + len(piece.text))
        cursor = 0
        for begin, end, token in self._template_tokens(members, starts, text):
            self._add_ordinary(members, starts, text, (cursor, begin), ids, marks)
            ids.append(token)
            marks.append((len(ids), members[_piece_at(starts, begin)]))
            cursor = end
        self._add_ordinary(members, starts, text, (cursor, len(text)), ids, marks)

    def _template_tokens(self, members: list[Piece], starts: list[int], text: str) -> list[tuple[int, int, int]]:
        """Return (start, end, id) of the added tokens that touch no literal piece."""
        found: list[tuple[int, int, int]] = []
        pattern = self._tokenizer.added_pattern
        match = pattern.search(text) if pattern is not None else None
        while match is not None and pattern is not None:
            first, last = _piece_at(starts, match.start()), _piece_at(starts, match.end() - 1)
            if any(piece.literal for piece in members[first : last + 1]):
                match = pattern.search(text, match.start() + 1)
                continue
            found.append((match.start(), match.end(), self._tokenizer.added_tokens[match.group()]))
            match = pattern.search(text, match.end())
        return found

    def _add_ordinary(
        self,
        members: list[Piece],
        starts: list[int],
        text: str,
        part: tuple[int, int],
        ids: list[int],
        marks: list[Mark],
    ) -> None:
        """Add a part of a run as plain text."""
        begin, end = part
        if begin == end:
            return
        new_ids, offsets = self._tokenizer.encode_with_offsets(text[begin:end], ordinary=True)
        for token, (start, _) in zip(new_ids, offsets, strict=True):
            ids.append(token)
            marks.append((len(ids), members[_piece_at(starts, begin + start)]))


def _group(pieces: Sequence[Piece]) -> list[Group]:
    """Gather adjacent text pieces to runs; each control token stands alone between them."""
    groups: list[Group] = []
    members: list[Piece] = []
    for piece in pieces:
        if piece[0] < 0:
            members.append(piece)
            continue
        if members:
            groups.append((members, _text_of(members)))
            members = []
        groups.append(([piece], ""))
    if members:
        groups.append((members, _text_of(members)))
    return groups


def _text_of(members: list[Piece]) -> str:
    return members[0][1] if len(members) == 1 else "".join([piece[1] for piece in members])


def _piece_at(starts: list[int], position: int) -> int:
    return bisect_right(starts, position) - 1


def _spans(marks: list[Mark], base: int) -> list[Span]:
    """Turn marks into spans; neighbours of the same owner and kind are one."""
    spans: list[Span] = []
    start = end = 0
    owner = kind = -1
    for mark_end, piece in marks:
        if mark_end == end:
            continue
        if piece[2] != owner or piece[3] != kind:
            if end > start:
                spans.append(Span(base + start, base + end, owner, _KINDS[kind]))
            owner, kind, start = piece[2], piece[3], end
        end = mark_end
    if end > start:
        spans.append(Span(base + start, base + end, owner, _KINDS[kind]))
    return spans
