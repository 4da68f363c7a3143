"""What stands behind a `Tokenizer`: the exact reference, and encoders that may replace it once they are proven."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

Offsets = list[tuple[int, int]]


@runtime_checkable
class BringYourOwn(Protocol):
    """The small protocol of a caller's own tokenizer object.

    `encode_ordinary` recognises no special token; `token_bytes` gives the bytes of one id (KeyError where an id below
    `vocab_size` is a hole); `special_tokens` maps each control token to its id.
    """

    special_tokens: Mapping[str, int]
    vocab_size: int

    def encode_ordinary(self, text: str) -> list[int]:
        """Encode text without recognising special tokens."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of one id."""
        ...


class Encoder(Protocol):
    """Something that encodes text; it may be swapped for another one that gives the same ids."""

    name: str

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode texts, recognising added tokens."""
        ...

    def encode_ordinary_many(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode texts, recognising no added token."""
        ...


class Backend(Encoder, Protocol):
    """The reference behind one tokenizer: encodes, and knows the vocabulary.

    `serialized()` is the tokenizer.json text from which a faster encoder can be built, or None where there is none.
    """

    added_tokens: dict[str, int]
    special_ids: frozenset[int]

    def encode_with_offsets(self, text: str, *, ordinary: bool) -> tuple[list[int], Offsets]:
        """Encode one text; offsets are character positions, `start <= i < end`."""
        ...

    def token_table(self) -> list[bytes]:
        """Return the bytes of every id from 0 on; b"" for a hole."""
        ...

    def token_id(self, token: str) -> int | None:
        """Return the id of one vocabulary entry that is not an added token, given as text."""
        ...

    def decode(self, ids: Sequence[int]) -> str | None:
        """Decode ids where joining token bytes is not what the vendor's decoder does, else None."""
        ...

    def is_lossless(self, text: str) -> bool:
        """Whether the normalizer leaves the text unchanged."""
        ...

    def serialized(self) -> str | None:
        """Return the tokenizer.json text, or None."""
        ...
