"""Take the added tokens out of a tokenizer.json, so that no text can become a control token."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

# A unigram score that loses against any other way to write the text.
_NEVER = -1e9


def without_added_tokens(data: dict[str, Any]) -> dict[str, Any]:
    """Return tokenizer.json data in which no added token is recognised, special or not.

    Some vocabularies keep control names inside the model's own vocabulary as well (Tekken, DeepSeek): there they are
    made unreachable too, without moving any other id.
    """
    names = {token["content"] for token in data.get("added_tokens") or []}
    model = dict(data["model"])
    remove = _BY_MODEL.get(model.get("type", "BPE"), _keep)
    names.discard(model.get("unk_token"))
    return {**data, "added_tokens": [], "model": remove(model, names)}


def _strip_bpe(model: dict[str, Any], names: set[str]) -> dict[str, Any]:
    """Drop merges that end in a control name, then the name itself unless a merge still needs it or it is one byte."""
    reachable = {name for name in names if name in model["vocab"] and len(name) > 1}
    if not reachable:
        return model
    merges = [merge for merge in model["merges"] if "".join(_pair(merge)) not in reachable]
    parts = {part for merge in merges for part in _pair(merge)}
    gone = reachable - parts
    vocab = {entry: token_id for entry, token_id in model["vocab"].items() if entry not in gone}
    return {**model, "vocab": vocab, "merges": merges}


def _strip_mapping(model: dict[str, Any], names: set[str]) -> dict[str, Any]:
    return {**model, "vocab": {entry: token_id for entry, token_id in model["vocab"].items() if entry not in names}}


def _strip_unigram(model: dict[str, Any], names: set[str]) -> dict[str, Any]:
    """Keep every place (a unigram id is a place in the list) but give control names a score that never wins."""
    unknown = model.get("unk_id")
    vocab: Iterable[tuple[str, float]] = model["vocab"]
    kept = [
        [entry, _NEVER if entry in names and place != unknown else score] for place, (entry, score) in enumerate(vocab)
    ]
    return {**model, "vocab": kept}


def _keep(model: dict[str, Any], _names: set[str]) -> dict[str, Any]:
    return model


_BY_MODEL: dict[str, Callable[[dict[str, Any], set[str]], dict[str, Any]]] = {
    "BPE": _strip_bpe,
    "WordPiece": _strip_mapping,
    "WordLevel": _strip_mapping,
    "Unigram": _strip_unigram,
}


def _pair(merge: str | list[str]) -> tuple[str, str]:
    """Read a merge in either spelling: `["a", "b"]`, or the older `"a b"`."""
    if isinstance(merge, str):
        left, _, right = merge.partition(" ")
        return left, right
    return merge[0], merge[1]
