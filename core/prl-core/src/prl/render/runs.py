"""Pieces to tokens: the text between two control tokens is joined and encoded in one call, then shared out again.

Joining first lets BPE merges cross piece borders as they do in the template's single pass. A token that straddles a
border belongs to the piece that holds its first byte.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, islice

from prl.render.conversation import bad_message
from prl.render.run_cache import Ids, RunCache
from prl.render.writer import Piece
from prl.tokenizer import Tokenizer
from prl.types import NO_MESSAGE, Kind, Span, TokenizerError

_MARKED = "\0"
"""Before the key of a text that spells control tokens: such ids are never given to a run with literal text."""
_KINDS = tuple(Kind(value) for value in range(4))

Run = tuple[int, int, str]
"""Text pieces between control tokens, `pieces[start:stop]`, and their joined text."""

_new = tuple.__new__  # half the cost of Span(...)


class RunEncoder:
    """Encodes the runs of one tokenizer, with its cache."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._cache = RunCache()

    def assemble(self, pieces: Sequence[Piece], base: int = 0) -> tuple[Ids, list[Span]]:
        """Return the pieces' ids, and their spans for ids that begin at token `base`.

        Text that the tokenizer cannot take is a `RenderError` that names its message.
        """
        try:
            return self._assemble(pieces, base) if pieces else ([], [])
        except TokenizerError as err:
            _blame(pieces, err)
            raise

    def _assemble(self, pieces: Sequence[Piece], base: int) -> tuple[Ids, list[Span]]:
        # Columns of plain values: reading a field of a piece takes longer than all the rest of such a loop.
        controls, texts, owners, kinds, literals = zip(*pieces, strict=True)
        runs = _runs(controls, texts)
        ids: Ids = []
        ends: list[int] = []  # of every piece, in tokens
        done = count = 0
        for (start, stop, text), run_ids in zip(runs, self._encode(runs, literals), strict=True):
            if start > done:
                ids += controls[done:start]
                ends += range(count + 1, count + 1 + start - done)
                count += start - done
            done = stop
            if run_ids is None:
                self._add_guarded(pieces[start:stop], text, ids, ends)
            else:
                if stop - start > 1:
                    self._share(texts[start:stop], run_ids, count, ends, is_ascii=text.isascii())
                ids += run_ids
                ends.append(len(ids))
            count = len(ids)
        ends += range(count + 1, count + 1 + len(pieces) - done)
        ids += controls[done:]
        return ids, _spans(owners, kinds, ends, base)

    def _encode(self, runs: list[Run], literals: Sequence[bool]) -> list[Ids | None]:
        """Return the ids of every run.

        None where they are not those of the joined text, or its tokens do not spell it: literal text in it spells
        control tokens, or the normalizer changes several pieces.
        """
        cache = self._cache
        known = {text: cache[text] for _, _, text in runs}
        unknown = [text for text, ids in known.items() if ids is None]
        if unknown:
            spelled = set(filter(self._tokenizer.spells_added, unknown))
            if spelled:
                unknown = [text for text in unknown if text not in spelled]
                free = [text for start, stop, text in runs if text in spelled and True not in literals[start:stop]]
                self._encode_marked(free, known)
            if unknown:
                self._add(known, unknown, self._tokenizer.encode_ordinary_many(unknown))
        is_lossless = self._tokenizer.is_lossless
        found = [known[text] if stop - start == 1 or is_lossless(text) else None for start, stop, text in runs]
        if None in found:
            for place, (start, stop, text) in enumerate(runs):
                if found[place] is None and known[text] is None and True not in literals[start:stop]:
                    found[place] = known[_MARKED + text] if stop - start == 1 or is_lossless(text) else None
        return found

    def _encode_marked(self, texts: list[str], known: dict[str, Ids | None]) -> None:
        """Encode texts in which control tokens are spelled and may become ids."""
        known.update({_MARKED + text: self._cache[_MARKED + text] for text in texts})
        unknown = [text for text in dict.fromkeys(texts) if known[_MARKED + text] is None]
        if unknown:
            self._add(known, [_MARKED + text for text in unknown], self._tokenizer.encode_many(unknown))

    def _add(self, known: dict[str, Ids | None], keys: list[str], encoded: list[Ids]) -> None:
        known.update(zip(keys, encoded, strict=True))
        self._cache.put_all(keys, encoded)

    def _share(self, texts: Sequence[str], run_ids: Ids, base: int, ends: list[int], *, is_ascii: bool) -> None:
        """Share a run's ids out by byte lengths, walking from both ends towards the longest piece.

        Adds the end of every piece but the last, which ends where the run does.
        """
        lengths = self._tokenizer.byte_lengths
        sizes = list(map(len, texts)) if is_ascii else [len(text.encode()) for text in texts]
        longest = sizes.index(max(sizes))
        walked = taken = border = 0
        for size in sizes[:longest]:
            border += size
            while walked < border and taken < len(run_ids):
                walked += lengths[run_ids[taken]]
                taken += 1
            ends.append(base + taken)
        if longest == len(sizes) - 1:
            return
        walked, kept, border = 0, len(run_ids), 0
        tail: list[int] = []
        for size in sizes[:longest:-1]:
            border += size
            while kept > taken and walked + lengths[run_ids[kept - 1]] <= border:
                kept -= 1
                walked += lengths[run_ids[kept]]
            tail.append(base + kept)
        ends += reversed(tail)

    def _add_guarded(self, members: Sequence[Piece], text: str, ids: Ids, ends: list[int]) -> None:
        """Add a run by character offsets.

        Where literal text spells control tokens, or the normalizer changes the text.
        """
        starts = [0]
        for _, piece_text, *_ in members[:-1]:
            starts.append(starts[-1] + len(piece_text))
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
            if any(literal for *_, literal in members[first : last + 1]):
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


def _blame(pieces: Sequence[Piece], err: TokenizerError) -> None:
    """Raise `RenderError` for the message whose text the tokenizer cannot take, if it is a message's."""
    for _, text, owner, *_ in pieces:
        try:
            text.encode()
        except UnicodeEncodeError as broken:
            if owner != NO_MESSAGE:
                half = f"half of a surrogate pair (U+{ord(text[broken.start]):04X})"
                raise bad_message(owner, f"holds {half}", err.next_step) from err
            return


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
