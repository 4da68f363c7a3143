"""`Tokenizer`: text to ids and back, the same for every kind of tokenizer, safe to share between threads."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from functools import cached_property

from prl.types import TokenizerError

from .backend import Backend, Encoder, Offsets
from .table import alternation, join_bytes, shared_prefix

# Characters after which a fast encoder pays for its start: building and proving one costs about what the reference
# spends on this much text.
_UPGRADE_AFTER = 400_000


class Tokenizer:
    """One tokenizer. Ids equal those of the vendor's fast tokenizer with `add_special_tokens=False`.

    `backend_name` says which encoder answers now and `backend_report` why.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        name_or_path: str = "",
        chat_templates: dict[str, str] | None = None,
        bos_token: str | None = None,
        eos_token: str | None = None,
        fast: str = "auto",
    ) -> None:
        self._backend = backend
        self._encoder: Encoder = backend
        self.name_or_path = name_or_path
        self.chat_templates = dict(chat_templates or {})
        self.bos_token = bos_token
        self.eos_token = eos_token
        self.added_tokens: dict[str, int] = dict(backend.added_tokens)
        self.special_ids: frozenset[int] = backend.special_ids
        self.added_pattern: re.Pattern[str] | None = alternation(self.added_tokens)
        self._added_prefix = shared_prefix(self.added_tokens)
        self.backend_report = "reference only, as asked" if fast == "hf" else "reference; no fast encoder tried yet"
        self._lock = threading.Lock()
        self._settled = fast == "hf"
        self._seen = 0

    def encode(self, text: str) -> list[int]:
        """Encode one text; added tokens in it become their ids."""
        return self.encode_many((text,))[0]

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode several texts in one call; added tokens in them become their ids."""
        try:
            return self._encoder_for(texts).encode_many(texts)
        except (TypeError, AttributeError, UnicodeError) as error:
            raise _bad_text(texts, error) from error

    def encode_ordinary(self, text: str) -> list[int]:
        """Encode one text as plain text: no added token is recognised, special or not."""
        return self.encode_ordinary_many((text,))[0]

    def encode_ordinary_many(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode several texts as plain text in one call."""
        try:
            return self._encoder_for(texts).encode_ordinary_many(texts)
        except (TypeError, AttributeError, UnicodeError) as error:
            raise _bad_text(texts, error) from error

    def encode_with_offsets(self, text: str, *, ordinary: bool = False) -> tuple[list[int], Offsets]:
        """Encode one text; also return each token's character range, `start <= i < end`, in the text as given."""
        try:
            return self._backend.encode_with_offsets(text, ordinary=ordinary)
        except (TypeError, UnicodeError) as error:
            raise _bad_text((text,), error) from error

    def decode(self, ids: Sequence[int]) -> str:
        """Decode ids, control tokens included; invalid UTF-8 becomes U+FFFD, an id outside the vocabulary nothing."""
        text = self._backend.decode(ids)
        return join_bytes(self.token_bytes, ids).decode("utf-8", "replace") if text is None else text

    @cached_property
    def token_bytes(self) -> list[bytes]:
        """Bytes of every id from 0 to `vocab_size - 1`; b"" where an id is not used."""
        return self._backend.token_table()

    @cached_property
    def byte_lengths(self) -> list[int]:
        """Length in bytes of every id."""
        return [len(data) for data in self.token_bytes]

    @property
    def vocab_size(self) -> int:
        """Highest id plus one, added tokens included."""
        return len(self.token_bytes)

    @property
    def chat_template(self) -> str | None:
        """The default chat template, or None."""
        return self.chat_templates.get("default")

    @property
    def backend_name(self) -> str:
        """Name of the encoder in use: "hf", "tiktoken", "own", or a fast one's."""
        return self._encoder.name

    def token_id(self, token: str) -> int | None:
        """Return the id of a single added token or vocabulary entry with exactly this text, or None."""
        added = self.added_tokens.get(token)
        return self._backend.token_id(token) if added is None else added

    def spells_added(self, text: str) -> bool:
        """Whether the text spells an added token."""
        # looking for what all of them begin with ("<", mostly) is several times faster than the pattern
        pattern = self.added_pattern
        return pattern is not None and self._added_prefix in text and pattern.search(text) is not None

    def is_lossless(self, text: str) -> bool:
        """Whether the normalizer leaves the text unchanged, so that tokens spell the text as given."""
        return self._backend.is_lossless(text)

    def warm_up(self) -> Tokenizer:
        """Build the tables and settle on the fastest encoder now rather than in the middle of work; return self."""
        _ = self.byte_lengths
        self._settle(wait=True)
        return self

    def _encoder_for(self, texts: Sequence[str]) -> Encoder:
        """Choose the encoder: the reference always takes text that its normalizer changes."""
        if not self._settled:
            self._seen += sum(map(len, texts))
            if self._seen >= _UPGRADE_AFTER:
                self._settle()
        encoder = self._encoder
        if encoder is self._backend or all(map(self._backend.is_lossless, texts)):
            return encoder
        return self._backend

    def _settle(self, *, wait: bool = False) -> None:
        """Try the fast encoders once; without `wait`, other threads go on with the reference meanwhile."""
        if not self._lock.acquire(blocking=wait):
            return
        try:
            if not self._settled:
                from .fast import fastest_equal

                encoder, self.backend_report = fastest_equal(self._backend)
                self._encoder = encoder or self._backend
                self._settled = True
        finally:
            self._lock.release()

    def __repr__(self) -> str:
        return f"Tokenizer({self.name_or_path or 'unnamed'!r}, backend={self.backend_name!r})"


def _bad_text(texts: Sequence[object], error: Exception) -> TokenizerError:
    """Say which of the texts is at fault: not a string, or a string that no UTF-8 can carry."""
    where = "the texts given to the tokenizer"
    for place, text in enumerate(texts):
        if not isinstance(text, str):
            return TokenizerError(
                f"text {place} is a {type(text).__name__}, not a string", where=where, next_step="pass strings"
            )
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as broken:
            half = f"half of a surrogate pair (U+{ord(text[broken.start]):04X})"
            return TokenizerError(
                f"text {place} holds {half} at character {broken.start}",
                where=where,
                next_step='repair it where it is read: text.encode("utf-16", "surrogatepass").decode("utf-16")',
            )
    return TokenizerError(f"the tokenizer refused a text: {error}", where=where, next_step="see the cause above")
