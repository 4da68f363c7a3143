"""A tokenizer small enough to read: one id a byte, control tokens, and a few merged strings."""

from __future__ import annotations

import re
from collections.abc import Sequence

# Merges across the borders where templates put text together: what a renderer that encodes piece by piece gets wrong.
MERGED = ("\n\n", "\n\n\n", " \n", ".\n", "}\n", "  ", "\n<")


class ByteTokenizer:
    """Encode UTF-8 bytes as ids 0..255, longest merged strings from 256 on, control tokens after them.

    Has the bring-your-own protocol of `prl.tokenizer`. Round trips every text; depends on no vocabulary file.
    """

    def __init__(self, control_tokens: Sequence[str], *, merged: Sequence[str] = MERGED) -> None:
        self._merged = {text: 256 + place for place, text in enumerate(dict.fromkeys(merged))}
        first = 256 + len(self._merged)
        self.special_tokens = {token: first + place for place, token in enumerate(dict.fromkeys(control_tokens))}
        self.vocab_size = first + len(self.special_tokens)
        self._bytes = [bytes([byte]) for byte in range(256)]
        self._bytes += [text.encode("utf-8") for text in (*self._merged, *self.special_tokens)]
        longest_first = sorted(self._merged, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def encode_ordinary(self, text: str) -> list[int]:
        """Encode text; no control token is recognised."""
        ids: list[int] = []
        at = 0
        for match in self._pattern.finditer(text):
            ids.extend(text[at : match.start()].encode("utf-8"))
            ids.append(self._merged[match.group()])
            at = match.end()
        ids.extend(text[at:].encode("utf-8"))
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        """Return one id's bytes; KeyError outside the vocabulary."""
        if not 0 <= token_id < self.vocab_size:
            raise KeyError(token_id)
        return self._bytes[token_id]
