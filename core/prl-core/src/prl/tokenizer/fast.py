"""Faster encoders, each optional: built from the tokenizer.json, proven on it, else left aside with the reason."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from .backend import Backend, Encoder
from .prove import first_difference
from .split import EncodeOrdinary, encode_split, strict
from .table import alternation, unspell


class UnsuitableError(Exception):
    """This encoder cannot serve this tokenizer; the text says why."""


# What a young native library may raise on a vocabulary or a text that it cannot take.
_REFUSALS = (UnsuitableError, ImportError, AttributeError, ValueError, TypeError, KeyError, RuntimeError, OSError)


class SplitEncoder:
    """An encoder of ordinary text, with added tokens split off first.

    A text that the native encoder refuses (a limit inside its regex engine) goes to the reference.
    """

    def __init__(self, name: str, encode: EncodeOrdinary, reference: Backend) -> None:
        self.name = name
        self._encode = encode
        self._reference = reference
        self._added = reference.added_tokens
        self._pattern = alternation(reference.added_tokens)

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode texts, recognising added tokens."""
        try:
            return [encode_split(text, self._pattern, self._added, self._encode) for text in texts]
        except (ValueError, RuntimeError):
            return self._reference.encode_many(texts)

    def encode_ordinary_many(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode texts, recognising no added token."""
        try:
            return list(map(self._encode, texts))
        except (ValueError, RuntimeError):
            return self._reference.encode_ordinary_many(texts)


def fastest_equal(reference: Backend) -> tuple[Encoder | None, str]:
    """Return the first candidate that is installed, fits and gives the reference's ids, and a report on all tried."""
    source = reference.serialized()
    if source is None:
        return None, f"{reference.name} is used as it is: there is no tokenizer.json to build a faster encoder from"
    report: list[str] = []
    for name, build in _CANDIDATES:
        try:
            encoder: Encoder = SplitEncoder(name, build(json.loads(source)), reference)
            difference = first_difference(reference, encoder)
        except _REFUSALS as refusal:
            difference = f"{type(refusal).__name__}: {refusal}"
        if difference is None:
            return encoder, "; ".join([*report, f"{name}: equal to the reference on every trial text"])
        report.append(f"{name}: {difference}")
    return None, "reference only: " + "; ".join(report)


def _build_fastokens(data: dict[str, Any]) -> EncodeOrdinary:
    """Build fastokens without normalizer (it only gets text that needs none) and without added tokens."""
    from fastokens import Tokenizer

    from .strip import without_added_tokens

    _require_plain_added_tokens(data)
    bare = {**without_added_tokens(data), "normalizer": None}
    tokenizer = Tokenizer.from_json_str(msgspec.json.encode(bare).decode())
    for entry, token_id in bare["model"]["vocab"].items():
        if tokenizer.token_to_id(entry) != token_id:
            raise UnsuitableError(f"its vocabulary has another id for {entry!r}")
    encode = tokenizer.encode_ordinary
    return lambda text: encode(text).ids


def _build_tiktoken(data: dict[str, Any]) -> EncodeOrdinary:
    """Build a `tiktoken.Encoding` where the model is byte-level BPE behind one known split pattern."""
    from tiktoken import Encoding

    from .strip import without_added_tokens

    _require_plain_added_tokens(data)
    pattern = _split_pattern(data)
    model = without_added_tokens(data)["model"]
    ranks = {unspell(entry): token_id for entry, token_id in model["vocab"].items()}
    if len(ranks) != len(model["vocab"]) or not all(bytes([byte]) in ranks for byte in range(256)):
        raise UnsuitableError("its vocabulary is not byte-level")
    return strict(Encoding("prl", pat_str=pattern, mergeable_ranks=ranks, special_tokens={}).encode_ordinary)


_CANDIDATES: tuple[tuple[str, Callable[[dict[str, Any]], EncodeOrdinary]], ...] = (
    ("fastokens", _build_fastokens),
    ("tiktoken", _build_tiktoken),
)


def _require_plain_added_tokens(data: dict[str, Any]) -> None:
    """Refuse added tokens that eat white space or need word borders: splitting them off is not the whole rule."""
    for token in data.get("added_tokens") or []:
        if token["lstrip"] or token["rstrip"] or token["single_word"]:
            raise UnsuitableError(f"the added token {token['content']!r} takes the white space around it")


def _split_pattern(data: dict[str, Any]) -> str:
    model, steps = data["model"], (data.get("pre_tokenizer") or {}).get("pretokenizers") or []
    if model.get("type") != "BPE" or model.get("dropout") or model.get("byte_fallback"):
        raise UnsuitableError("the model is not plain BPE")
    if [step["type"] for step in steps] != ["Split", "ByteLevel"]:
        raise UnsuitableError("the pre-tokenizer is not one split pattern and ByteLevel")
    split, byte_level = steps
    pattern = split["pattern"].get("Regex")
    if pattern is None or split["behavior"] != "Isolated" or split["invert"] or byte_level["use_regex"]:
        raise UnsuitableError("the split is not an isolated regular expression")
    if byte_level["add_prefix_space"]:
        raise UnsuitableError("the pre-tokenizer adds a blank")
    return str(pattern)
