"""Pieces to tokens: the text between two control tokens is joined and encoded in one call, then shared out again.

Joining first lets BPE merges cross piece borders as they do in the template's single pass. A token that straddles a
border belongs to the piece that holds its first byte.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, islice

from prl.render.writer import Piece
from prl.tokenizer import Tokenizer
from prl.types import Kind, Span

_CACHE_CHARS = 8_000_000
_MARKED = "\0"
"""Before the key of a text that spells control tokens: such ids are never given to a run with literal text."""
_KINDS = tuple(Kind(value) for value in range(4))

Ids = list[int]
Run = tuple[int, int, str]
"""Text pieces between control tokens, `pieces[start:stop]`, and their joined text."""

_new = tuple.__new__  # half the cost of Span(...)


class RunCache(dict[str, Ids | None]):
    """Encoded runs by text, bounded by characters: two generations, the older one dropped as a whole.

    `cache[text]` is one dictionary look-up for a text of the young generation, None for an unknown one. Callers never
    change the ids.
    """

    def __init__(self, max_chars: int = _CACHE_CHARS) -> None:
        super().__init__()
        self._half = max_chars // 2
        self._old: dict[str, Ids | None] = {}
        self._chars = 0
        self._lock = threading.Lock()

    def __missing__(self, text: str) -> Ids | None:
        ids = self._old.get(text)
        if ids is not None:
            self.put(text, ids)
        return ids

    def put(self, text: str, ids: Ids) -> None:
        """Keep the ids of a text."""
        with self._lock:
            if self._chars + len(text) > self._half:
                self._old, self._chars = dict(self), 0
                self.clear()
            self[text] = ids
            self._chars += len(text)


class RunEncoder:
    """Encodes the runs of one tokenizer, with its cache."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._cache = RunCache()

    def assemble(self, pieces: Sequence[Piece], base: int = 0) -> tuple[Ids, list[Span]]:
        """Return the pieces' ids, and their spans for ids that begin at token `base`."""
        if not pieces:
            return [], []
        # Columns of plain values: reading a field of a named tuple takes longer than all the rest of such a loop.
        controls, texts, owners, kinds, literals = zip(*pieces, strict=True)
        runs = _runs(controls, texts)
        known = self._encode(runs, literals)
        ids: Ids = []
        ends: list[int] = []  # of every piece, in tokens
        done = 0
        for start, stop, text in runs:
            if start > done:
                ends += range(len(ids) + 1, len(ids) + 1 + start - done)
                ids += controls[done:start]
            done = stop
            run_ids = known[text]
            if run_ids is None and True not in literals[start:stop]:
                run_ids = known[_MARKED + text]
            if run_ids is not None and stop - start == 1:
                ids += run_ids
                ends.append(len(ids))
            elif run_ids is not None and self._tokenizer.is_lossless(text):
                self._share(texts[start:stop], run_ids, len(ids), ends)
                ids += run_ids
            else:
                self._add_guarded(pieces[start:stop], text, ids, ends)
        ends += range(len(ids) + 1, len(ids) + 1 + len(pieces) - done)
        ids += controls[done:]
        return ids, _spans(owners, kinds, ends, base)

    def _encode(self, runs: list[Run], literals: Sequence[bool]) -> dict[str, Ids | None]:
        """Return ids by text: None for a text that the tokenizer may not encode as the vendor does."""
        cache = self._cache
        known = {text: cache[text] for _, _, text in runs}
        unknown = [text for text, ids in known.items() if ids is None]
        pattern = self._tokenizer.added_pattern
        spelled = [] if pattern is None else [text for text in unknown if pattern.search(text) is not None]
        if spelled:
            unknown = [text for text in unknown if text not in spelled]
            free = [text for start, stop, text in runs if text in spelled and True not in literals[start:stop]]
            self._encode_marked(free, known)
        if unknown:
            self._add(known, unknown, self._tokenizer.encode_ordinary_many(unknown))
        return known

    def _encode_marked(self, texts: list[str], known: dict[str, Ids | None]) -> None:
        """Encode texts in which control tokens are spelled and may become ids."""
        known.update({_MARKED + text: self._cache[_MARKED + text] for text in texts})
        unknown = [text for text in dict.fromkeys(texts) if known[_MARKED + text] is None]
        if unknown:
            self._add(known, [_MARKED + text for text in unknown], self._tokenizer.encode_many(unknown))

    def _add(self, known: dict[str, Ids | None], keys: list[str], encoded: list[Ids]) -> None:
        for key, ids in zip(keys, encoded, strict=True):
            known[key] = ids
            self._cache.put(key, ids)

    def _share(self, texts: Sequence[str], run_ids: Ids, base: int, ends: list[int]) -> None:
        """Share a run's ids out by byte lengths, walking from both ends towards the longest piece."""
        lengths = self._tokenizer.byte_lengths
        sizes = list(map(len, texts))
        longest = sizes.index(max(sizes))
        walked, taken, border = 0, 0, 0
        for text in texts[:longest]:
            border += len(text.encode())
            while walked < border and taken < len(run_ids):
                walked += lengths[run_ids[taken]]
                taken += 1
            ends.append(base + taken)
        walked, kept, border = 0, len(run_ids), 0
        tail: list[int] = []
        for text in texts[:longest:-1]:
            tail.append(base + kept)
            border += len(text.encode())
            while kept > taken and walked + lengths[run_ids[kept - 1]] <= border:
                kept -= 1
                walked += lengths[run_ids[kept]]
        ends.append(base + kept)
        ends += reversed(tail)

    def _add_guarded(self, members: Sequence[Piece], text: str, ids: Ids, ends: list[int]) -> None:
        """Add a run by character offsets.

        Where literal text spells control tokens, or the normalizer changes the text.
        """
        starts = [0]
        for piece in members[:-1]:
            starts.append(starts[-1] + len(piece.text))
        owners: list[int] = []  # of every new token, the place of its piece
        cursor = 0
        for begin, end, token in self._template_tokens(members, starts, text):
            self._add_ordinary(text, (cursor, begin), starts, ids, owners)
            ids.append(token)
            owners.append(_piece_at(starts, begin))
            cursor = end
        self._add_ordinary(text, (cursor, len(text)), starts, ids, owners)
        counted = accumulate(map(owners.count, range(len(members))), initial=len(ids) - len(owners))
        ends += islice(counted, 1, None)

    def _template_tokens(self, members: Sequence[Piece], starts: list[int], text: str) -> list[tuple[int, int, int]]:
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

    def _add_ordinary(self, text: str, part: tuple[int, int], starts: list[int], ids: Ids, owners: list[int]) -> None:
        """Add a part of a run as plain text."""
        begin, end = part
        if begin == end:
            return
        new_ids, offsets = self._tokenizer.encode_with_offsets(text[begin:end], ordinary=True)
        ids += new_ids
        owners += [_piece_at(starts, begin + start) for start, _ in offsets]


def _runs(controls: Sequence[int], texts: Sequence[str]) -> list[Run]:
    """Gather adjacent text pieces to runs."""
    runs: list[Run] = []
    start, text = -1, ""
    for place, control in enumerate(controls):
        if control >= 0:
            if start >= 0:
                runs.append((start, place, text))
                start = -1
        elif start < 0:
            start, text = place, texts[place]
        else:
            text += texts[place]
    if start >= 0:
        runs.append((start, len(controls), text))
    return runs


def _piece_at(starts: list[int], position: int) -> int:
    return bisect_right(starts, position) - 1


def _spans(owners: Sequence[int], kinds: Sequence[int], ends: list[int], base: int) -> list[Span]:
    """Return the spans of pieces; neighbours of the same owner and kind are one."""
    spans: list[Span] = []
    start = end = 0
    owner = kind = -1
    for next_owner, next_kind, next_end in zip(owners, kinds, ends, strict=True):
        if next_end == end:
            continue
        if next_owner != owner or next_kind != kind:
            if end > start:
                spans.append(_new(Span, (base + start, base + end, owner, _KINDS[kind])))
            owner, kind, start = next_owner, next_kind, end
        end = next_end
    if end > start:
        spans.append(_new(Span, (base + start, base + end, owner, _KINDS[kind])))
    return spans
