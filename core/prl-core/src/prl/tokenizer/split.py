"""Encode text with added tokens by splitting them off first: for encoders that only know ordinary text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

EncodeOrdinary = Callable[[str], list[int]]


def encode_split(
    text: str, pattern: re.Pattern[str] | None, added: Mapping[str, int], encode: EncodeOrdinary
) -> list[int]:
    """Encode one text: added tokens become their ids, what lies between is ordinary text."""
    if pattern is None:
        return encode(text)
    ids: list[int] = []
    at = 0
    for match in pattern.finditer(text):
        if match.start() > at:
            ids.extend(encode(text[at : match.start()]))
        ids.append(added[match.group()])
        at = match.end()
    if at == 0:
        return encode(text)
    if at < len(text):
        ids.extend(encode(text[at:]))
    return ids


def strict(encode: EncodeOrdinary) -> EncodeOrdinary:
    """Make an encoder refuse halves of surrogate pairs, which tiktoken would silently replace by U+FFFD."""

    def encode_strictly(text: str) -> list[int]:
        if not text.isascii():
            text.encode("utf-8")
        return encode(text)

    return encode_strictly
