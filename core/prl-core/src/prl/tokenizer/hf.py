"""The reference backend over `tokenizers.Tokenizer`, on private copies: one with the added tokens, one without."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
from tokenizers import Tokenizer as HFTokenizer

from prl.types import TokenizerError

from .backend import Offsets
from .strip import without_added_tokens
from .table import close_gaps, plain_bytes, spell, table_of, unspell

# Below this many characters one direct call is cheaper than a batch of one; above it, the batch call is worth it:
# `encode` holds the interpreter lock for its whole run and `encode_batch_fast` does not.
_DIRECT = 2_000

# Normalizers that leave ASCII alone, and the form that decides the rest.
_UNICODE_FORMS = {"NFC", "NFKC", "NFD", "NFKD"}


class HFBackend:
    """Encode exactly as the vendor's fast tokenizer does with `add_special_tokens=False`."""

    name = "hf"

    def __init__(self, source: str) -> None:
        data = _private(source)
        self._full = _build(data)
        self._ordinary = self._full
        added = self._full.get_added_tokens_decoder()
        if added:
            self._ordinary = _build(without_added_tokens(data))
        self.added_tokens: dict[str, int] = {token.content: token_id for token_id, token in sorted(added.items())}
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        normalizer = (data.get("normalizer") or {}).get("type")
        self._form = normalizer if normalizer in _UNICODE_FORMS else None
        self._normalizer = self._full.normalizer if normalizer else None
        self._byte_level = "ByteLevel" in {step.get("type") for step in _steps(data.get("decoder"))}

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode texts, recognising added tokens."""
        return _encode(self._full, texts)

    def encode_ordinary_many(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode texts, recognising no added token."""
        return _encode(self._ordinary, texts)

    def encode_with_offsets(self, text: str, *, ordinary: bool) -> tuple[list[int], Offsets]:
        """Encode one text with character offsets into the text as given."""
        encoding = (self._ordinary if ordinary else self._full).encode(text, add_special_tokens=False)
        offsets: Offsets = encoding.offsets
        if self._byte_level and not self.is_lossless(text):
            offsets = close_gaps(offsets, len(text))
        return encoding.ids, offsets

    def token_table(self) -> list[bytes]:
        """Return the bytes of every id; an added token's bytes are its text."""
        read = unspell if self._byte_level else plain_bytes
        added = {token_id: token for token, token_id in self.added_tokens.items()}
        vocab = self._full.get_vocab(with_added_tokens=True)
        table = table_of((token_id, read(entry)) for entry, token_id in vocab.items())
        for token_id, token in added.items():
            table[token_id] = token.encode("utf-8")
        return table

    def token_id(self, token: str) -> int | None:
        """Look a vocabulary entry up by its text."""
        entry = spell(token.encode("utf-8", "surrogatepass")) if self._byte_level else token
        found: int | None = self._full.token_to_id(entry)
        return found

    def decode(self, ids: Sequence[int]) -> str | None:
        """Decode by the tokenizer's own decoder where it is not byte-level."""
        if self._byte_level:
            return None
        return str(self._full.decode(list(ids), skip_special_tokens=False))

    def is_lossless(self, text: str) -> bool:
        """Whether the normalizer leaves the text unchanged.

        For NFC Python's tables decide: what they call normalized, the (older) tables inside `tokenizers` leave alone.
        """
        if self._normalizer is None or (self._form and text.isascii()):
            return True
        if self._form == "NFC":
            return unicodedata.is_normalized("NFC", text)
        return bool(self._normalizer.normalize_str(text) == text)

    def serialized(self) -> str | None:
        """Return the private copy's tokenizer.json text."""
        return str(self._full.to_str())


def _private(source: str) -> dict[str, Any]:
    """Read tokenizer.json text, leaving out truncation, padding and the post-processor.

    The first two cut or fill; the third adds BOS, which renderers write themselves, and trims white space off offsets.
    """
    try:
        data: dict[str, Any] = json.loads(source)
        return {**data, "model": dict(data["model"]), "truncation": None, "padding": None, "post_processor": None}
    except (ValueError, TypeError, KeyError) as error:
        raise _not_a_tokenizer(error) from error


def _build(data: dict[str, Any]) -> HFTokenizer:
    try:
        return HFTokenizer.from_buffer(msgspec.json.encode(data))
    except ValueError as error:
        raise _not_a_tokenizer(error) from error


def _not_a_tokenizer(error: Exception) -> TokenizerError:
    return TokenizerError(
        f"this is not a tokenizer.json that the installed `tokenizers` can read: {error}",
        where="the tokenizer's JSON text",
        next_step="download it again, or upgrade `tokenizers` if the file was written by a newer one",
    )


def _encode(tokenizer: HFTokenizer, texts: Sequence[str]) -> list[list[int]]:
    if len(texts) == 1 and len(texts[0]) < _DIRECT:
        return [tokenizer.encode(texts[0], add_special_tokens=False).ids]
    batch = partial(tokenizer.encode_batch_fast, add_special_tokens=False)
    return [encoding.ids for encoding in batch(list(texts))]


def _steps(part: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Flatten a `Sequence` of tokenizer.json steps."""
    if part is None:
        return []
    children = part.get("decoders") or part.get("pretokenizers") or part.get("normalizers")
    if children is None:
        return [part]
    return [step for child in children for step in _steps(child)]
