"""Reference backends over `tiktoken.Encoding` and over a caller's own object."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from .backend import BringYourOwn, Offsets
from .split import EncodeOrdinary, encode_split, strict
from .table import alternation, offsets_from_bytes, table_of


@runtime_checkable
class TiktokenEncoding(Protocol):
    """The part of `tiktoken.Encoding` that is used."""

    name: str

    @property
    def n_vocab(self) -> int:
        """Highest id plus one."""
        ...

    @property
    def special_tokens_set(self) -> set[str]:
        """Names of the special tokens."""
        ...

    def encode_ordinary(self, text: str) -> list[int]:
        """Encode without special tokens."""
        ...

    def encode_single_token(self, text_or_bytes: str | bytes) -> int:
        """Return one token's id."""
        ...

    def decode_single_token_bytes(self, token: int) -> bytes:
        """Return one id's bytes."""
        ...


class OrdinaryBackend:
    """A backend over an encoder of ordinary text; control tokens are split off before it sees the text."""

    def __init__(self, name: str, encode: EncodeOrdinary, added: dict[str, int], table: list[bytes]) -> None:
        self.name = name
        self.added_tokens = added
        self.special_ids = frozenset(added.values())
        self._encode = encode
        self._pattern = alternation(added)
        self._table = table
        self._ids = {data: token_id for token_id, data in enumerate(table) if data}

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode texts, recognising control tokens."""
        return [encode_split(text, self._pattern, self.added_tokens, self._encode) for text in texts]

    def encode_ordinary_many(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode texts, recognising none."""
        return [list(self._encode(text)) for text in texts]

    def encode_with_offsets(self, text: str, *, ordinary: bool) -> tuple[list[int], Offsets]:
        """Encode one text; offsets follow from the tokens' byte lengths."""
        [ids] = self.encode_ordinary_many([text]) if ordinary else self.encode_many([text])
        return ids, offsets_from_bytes(text, [len(self._table[token_id]) for token_id in ids])

    def token_table(self) -> list[bytes]:
        """Return the bytes of every id."""
        return self._table

    def token_id(self, token: str) -> int | None:
        """Look a vocabulary entry up by its text."""
        return self._ids.get(token.encode("utf-8"))

    def decode(self, ids: Sequence[int]) -> str | None:
        """Say that joining bytes is right."""
        return None

    def is_lossless(self, text: str) -> bool:
        """Say that nothing is normalized."""
        return True

    def serialized(self) -> str | None:
        """Say that there is no tokenizer.json."""
        return None


def tiktoken_backend(encoding: TiktokenEncoding) -> OrdinaryBackend:
    """Wrap a `tiktoken.Encoding`; its special tokens are the added tokens."""
    added = {token: encoding.encode_single_token(token) for token in sorted(encoding.special_tokens_set)}
    table = _read_table(encoding.n_vocab, encoding.decode_single_token_bytes, added)
    return OrdinaryBackend("tiktoken", strict(encoding.encode_ordinary), added, table)


def own_backend(tokenizer: BringYourOwn) -> OrdinaryBackend:
    """Wrap a caller's own object."""
    added = dict(tokenizer.special_tokens)
    table = _read_table(tokenizer.vocab_size, tokenizer.token_bytes, added)
    return OrdinaryBackend("own", tokenizer.encode_ordinary, added, table)


class _TokenBytes(Protocol):
    def __call__(self, token: int, /) -> bytes: ...


def _read_table(size: int, token_bytes: _TokenBytes, added: dict[str, int]) -> list[bytes]:
    known: dict[int, bytes] = {}
    for token_id in range(size):
        try:
            known[token_id] = token_bytes(token_id)
        except KeyError:  # a hole: tiktoken's o200k_harmony, for one, has gaps between its special tokens
            continue
    known.update({token_id: token.encode("utf-8") for token, token_id in added.items()})
    known.setdefault(size - 1, b"")
    return table_of(known.items())
