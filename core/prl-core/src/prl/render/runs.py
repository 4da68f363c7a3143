"""Pieces to tokens: the text between two control tokens is joined and encoded in one call, then shared out again.

Joining first lets BPE merges cross piece borders as they do in the template's single pass. A token that straddles a border
belongs to the piece that holds its first byte.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from prl.render.writer import Piece
from prl.tokenizer import Tokenizer
from prl.types import Kind, Span

_CACHE_CHARS = 8_000_000
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


class RunEncoder:
    """Encodes the runs of one tokenizer, with its cache."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._cache = RunCache()

    def assemble(self, pieces: Sequence[Piece], ids: list[int], spans: list[Span]) -> None:
        """Append the pieces' ids and spans to `ids` and `spans`."""
        runs, groups = _group(pieces)
        encoded = self._encode(runs)
        for control, run in groups:
            if run >= 0:
                members, text = runs[run]
                run_ids = encoded.get(text)
                if run_ids is None or (len(members) > 1 and not self._tokenizer.is_lossless(text)):
                    self._add_guarded(members, text, ids, spans)
                elif len(members) == 1:
                    _extend(spans, len(ids), len(ids) + len(run_ids), members[0])
                    ids += run_ids
                else:
                    self._add_shared(members, run_ids, ids, spans)
            if control is not None:
                _extend(spans, len(ids), len(ids) + 1, control)
                ids.append(control.control)

    def _encode(self, runs: list[tuple[list[Piece], str]]) -> dict[str, list[int]]:
        """Return ids by text, for every run that the tokenizer may encode as the vendor does."""
        known: dict[str, list[int]] = {}
        missing: dict[str, None] = {}
        pattern = self._tokenizer.added_pattern
        for members, text in runs:
            if text in known:
                continue
            if pattern is not None and any(piece.literal for piece in members) and pattern.search(text):
                continue
            ids = self._cache.get(text)
            if ids is None:
                missing[text] = None
            else:
                known[text] = ids
        if missing:
            texts = list(missing)
            for text, ids in zip(texts, self._tokenizer.encode_many(texts), strict=True):
                known[text] = ids
                self._cache.put(text, ids)
        return known

    def _add_shared(self, members: list[Piece], run_ids: list[int], ids: list[int], spans: list[Span]) -> None:
        """Share a run's ids out by byte lengths, walking from both ends towards the longest piece."""
        lengths = self._tokenizer.byte_lengths
        sizes = [len(piece.text) for piece in members]
        longest = sizes.index(max(sizes))
        borders = [0]
        walked, taken = 0, 0
        border = 0
        for piece in members[:longest]:
            border += len(piece.text.encode())
            while walked < border and taken < len(run_ids):
                walked += lengths[run_ids[taken]]
                taken += 1
            borders.append(taken)
        tail: list[int] = []
        walked, kept = 0, len(run_ids)
        border = 0
        for piece in reversed(members[longest + 1 :]):
            border += len(piece.text.encode())
            while kept > taken and walked + lengths[run_ids[kept - 1]] <= border:
                kept -= 1
                walked += lengths[run_ids[kept]]
            tail.append(kept)
        borders += reversed(tail)
        borders.append(len(run_ids))
        base = len(ids)
        for n, piece in enumerate(members):
            _extend(spans, base + borders[n], base + borders[n + 1], piece)
        ids += run_ids

    def _add_guarded(self, members: list[Piece], text: str, ids: list[int], spans: list[Span]) -> None:
        """Add a run by character offsets: where literal text spells control tokens, or the normalizer changes the text."""
        starts: list[int] = []
        position = 0
        for piece in members:
            starts.append(position)
            position += len(piece.text)
        cursor = 0
        for begin, end, token in self._template_tokens(members, starts, text):
            self._add_ordinary(members, starts, text, cursor, begin, ids, spans)
            _extend(spans, len(ids), len(ids) + 1, members[_piece_at(starts, begin)])
            ids.append(token)
            cursor = end
        self._add_ordinary(members, starts, text, cursor, len(text), ids, spans)

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
        self, members: list[Piece], starts: list[int], text: str, begin: int, end: int, ids: list[int], spans: list[Span]
    ) -> None:
        if begin == end:
            return
        new_ids, offsets = self._tokenizer.encode_with_offsets(text[begin:end], ordinary=True)
        for token, (start, _) in zip(new_ids, offsets, strict=True):
            _extend(spans, len(ids), len(ids) + 1, members[_piece_at(starts, begin + start)])
            ids.append(token)


def _group(pieces: Sequence[Piece]) -> tuple[list[tuple[list[Piece], str]], list[tuple[Piece | None, int]]]:
    """Split pieces into runs of text and the control tokens after them: (control or None, index of the run or -1)."""
    runs: list[tuple[list[Piece], str]] = []
    groups: list[tuple[Piece | None, int]] = []
    members: list[Piece] = []

    def close(control: Piece | None) -> None:
        nonlocal members
        if members:
            runs.append((members, members[0].text if len(members) == 1 else "".join([m.text for m in members])))
            groups.append((control, len(runs) - 1))
            members = []
        elif control is not None:
            groups.append((control, -1))

    for piece in pieces:
        if piece.control < 0:
            members.append(piece)
        else:
            close(piece)
    close(None)
    return runs, groups


def _piece_at(starts: list[int], position: int) -> int:
    for n in range(len(starts) - 1, 0, -1):
        if starts[n] <= position:
            return n
    return 0


def _extend(spans: list[Span], start: int, end: int, piece: Piece) -> None:
    """Add a span, or lengthen the last one where owner and kind are the same."""
    if start == end:
        return
    if spans:
        last = spans[-1]
        if last.message == piece.owner and last.kind == piece.kind:
            spans[-1] = Span(last.start, end, piece.owner, last.kind)
            return
    spans.append(Span(start, end, piece.owner, _KINDS[piece.kind]))
