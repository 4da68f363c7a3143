"""Token bytes: the byte-level alphabet, per-id tables, and offsets computed from byte lengths."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from .backend import Offsets

_BYTE_FALLBACK = re.compile(r"<0x([0-9A-F]{2})>")


@lru_cache(maxsize=1)
def byte_alphabet() -> dict[str, int]:
    """Return the byte-level alphabet, character to byte.

    Printable Latin-1 bytes stand for themselves; the other 68 take the characters from U+0100 on, in byte order
    (GPT-2's convention, used by every byte-level tokenizer.json).
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(0x100) if byte not in set(printable)]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(0x100 + place): byte for place, byte in enumerate(rest)})
    return alphabet


@lru_cache(maxsize=1)
def _spelling() -> dict[int, str]:
    return {byte: char for char, byte in byte_alphabet().items()}


def spell(data: bytes) -> str:
    """Write bytes in the byte-level alphabet, as vocabulary keys and merges are written."""
    letters = _spelling()
    return "".join([letters[byte] for byte in data])


def unspell(entry: str) -> bytes:
    """Read a byte-level vocabulary key; an entry that is not in the alphabet is its own UTF-8 text."""
    alphabet = byte_alphabet()
    try:
        return bytes([alphabet[char] for char in entry])
    except KeyError:
        return entry.encode("utf-8", "surrogatepass")


def plain_bytes(entry: str) -> bytes:
    """Read a SentencePiece-style key: `<0x0A>` is a byte, U+2581 a blank."""
    fallback = _BYTE_FALLBACK.fullmatch(entry)
    if fallback:
        return bytes([int(fallback.group(1), 16)])
    return entry.replace("▁", " ").encode("utf-8", "surrogatepass")


def table_of(entries: Iterable[tuple[int, bytes]]) -> list[bytes]:
    """Lay (id, bytes) out as a list by id; holes are b""."""
    known = dict(entries)
    table = [b""] * (max(known, default=-1) + 1)
    for token_id, data in known.items():
        table[token_id] = data
    return table


def join_bytes(table: Sequence[bytes], ids: Sequence[int]) -> bytes:
    """Join the bytes of ids; an id outside the table has none (a model's padded embedding rows)."""
    size = len(table)
    try:
        if not ids or min(ids) >= 0:
            return b"".join([table[token_id] for token_id in ids])
    except IndexError:
        pass
    return b"".join([table[token_id] for token_id in ids if 0 <= token_id < size])


def offsets_from_bytes(text: str, lengths: Sequence[int]) -> Offsets:
    """Return character ranges of consecutive tokens from their byte lengths; a cut character belongs to both tokens."""
    owner: list[int] = []
    for place, char in enumerate(text):
        owner.extend([place] * len(char.encode("utf-8", "surrogatepass")))
    offsets: Offsets = []
    at = 0
    for length in lengths:
        end = at + length
        begin = owner[at] if at < len(owner) else len(text)
        offsets.append((begin, owner[end - 1] + 1 if length and end <= len(owner) else begin))
        at = end
    return offsets


def close_gaps(offsets: Offsets, length: int) -> Offsets:
    """Give characters that the normalizer composed into the one before (a combining mark) to that one's last token."""
    starts = [*(start for start, _ in offsets[1:]), length]
    return [(start, max(end, following)) for (start, end), following in zip(offsets, starts, strict=True)]


def alternation(tokens: Mapping[str, int]) -> re.Pattern[str] | None:
    """Compile a leftmost-longest match of any token; None where there is none."""
    names = sorted((token for token in tokens if token), key=lambda token: (-len(token), token))
    return re.compile("|".join(map(re.escape, names))) if names else None


def shared_prefix(tokens: Iterable[str]) -> str:
    """Return what all tokens that are not empty begin with."""
    names = [token for token in tokens if token]
    if not names:
        return ""
    first, last = min(names), max(names)
    length = next((n for n, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), len(first))
    return first[:length]
