"""Get a `Tokenizer`: from a directory, a tokenizer.json, a hub id, or an object the caller has already."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prl.types import TokenizerError

from .adapter import Tokenizer
from .backend import Backend, BringYourOwn
from .files import read_directory
from .foreign import TiktokenEncoding, own_backend, tiktoken_backend

_BACKENDS = ("auto", "fast", "hf")
_HUB_FILES = [
    "config.json",  # says whether the model takes images
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates/*.jinja",
]


def load_tokenizer(path_or_hub_id: str | Path, *, revision: str | None = None, backend: str = "auto") -> Tokenizer:
    """Load a tokenizer from a directory with a tokenizer.json, a tokenizer.json path, or a Hugging Face hub id.

    `backend`: "auto" moves to a proven faster encoder once enough text was encoded, "fast" at once, "hf" never.
    Raises `TokenizerError`.
    """
    if backend not in _BACKENDS:
        raise TokenizerError(
            f"unknown tokenizer backend {backend!r}",
            where="load_tokenizer(backend=...)",
            next_step="choose one of: " + ", ".join(_BACKENDS),
        )
    if not isinstance(path_or_hub_id, str | os.PathLike) or not str(path_or_hub_id):
        raise TokenizerError(
            f"{path_or_hub_id!r} names no tokenizer",
            where="load_tokenizer",
            next_step="give a directory that holds a tokenizer.json, or a hub id such as Qwen/Qwen3-0.6B",
        )
    name = os.fspath(path_or_hub_id)
    files = read_directory(_locate(name, revision))
    from .hf import HFBackend

    tokenizer = Tokenizer(
        HFBackend(files.tokenizer_json),
        name_or_path=name,
        chat_templates=files.chat_templates,
        bos_token=files.bos_token,
        eos_token=files.eos_token,
        fast=backend,
    )
    return tokenizer.warm_up() if backend == "fast" else tokenizer


def as_tokenizer(obj: Any) -> Tokenizer:
    """Wrap the caller's own tokenizer object, which is never changed.

    Takes a `Tokenizer`, a `tokenizers.Tokenizer`, a transformers fast tokenizer, a `tiktoken.Encoding`, or an object
    with the `BringYourOwn` protocol. Raises `TokenizerError`.
    """
    if isinstance(obj, Tokenizer):
        return obj
    for wrap in _WRAPPERS:
        backend = wrap(obj)
        if backend is not None:
            return Tokenizer(
                backend,
                name_or_path=str(getattr(obj, "name_or_path", "") or getattr(obj, "name", "")),
                chat_templates=_templates_of(getattr(obj, "chat_template", None)),
                bos_token=_text_or_none(getattr(obj, "bos_token", None)),
                eos_token=_text_or_none(getattr(obj, "eos_token", None)),
            )
    raise TokenizerError(
        f"cannot use a {type(obj).__module__}.{type(obj).__qualname__} as a tokenizer",
        where="as_tokenizer",
        next_step="call load_tokenizer(directory or hub id), or pass a tokenizers.Tokenizer, a transformers *fast* "
        "tokenizer, a tiktoken.Encoding, or an object with encode_ordinary(text), token_bytes(id), special_tokens "
        "and vocab_size",
    )


def _wrap_transformers(obj: Any) -> Backend | None:
    """Take the Rust tokenizer inside a transformers fast tokenizer."""
    return _wrap_tokenizers(getattr(obj, "backend_tokenizer", None))


def _wrap_tokenizers(obj: Any) -> Backend | None:
    """Take a `tokenizers.Tokenizer` (or a stand-in that serializes like one)."""
    if not (hasattr(obj, "to_str") and hasattr(obj, "get_vocab_size") and hasattr(obj, "encode_batch")):
        return None
    from .hf import HFBackend

    return HFBackend(obj.to_str())


def _wrap_own(obj: Any) -> Backend | None:
    return own_backend(obj) if isinstance(obj, BringYourOwn) else None


def _wrap_tiktoken(obj: Any) -> Backend | None:
    return tiktoken_backend(obj) if isinstance(obj, TiktokenEncoding) else None


_WRAPPERS: tuple[Callable[[Any], Backend | None], ...] = (
    _wrap_tokenizers,
    _wrap_transformers,
    _wrap_own,
    _wrap_tiktoken,
)


def _templates_of(value: Any) -> dict[str, str]:
    """Read transformers' `chat_template` attribute: text, or a mapping of named templates."""
    if isinstance(value, str):
        return {"default": value}
    return dict(value) if isinstance(value, dict) else {}


def _text_or_none(value: Any) -> str | None:
    return None if value is None else str(value)


def _locate(name: str, revision: str | None) -> Path:
    path = Path(name).expanduser()
    if path.exists():
        return path
    if name.count("/") > 1 or name.startswith((".", "~", "/")) or name.endswith(".json"):
        raise TokenizerError(
            f"no tokenizer at {name}",
            where=str(path.absolute()),
            next_step="give a directory that holds a tokenizer.json, that file, or a hub id such as Qwen/Qwen3-0.6B",
        )
    return _download(name, revision)


def _download(hub_id: str, revision: str | None) -> Path:
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError
    except ImportError as error:
        raise TokenizerError(
            f"{hub_id!r} is no local path, and reading from the hub needs huggingface_hub",
            where="load_tokenizer",
            next_step="Try: pip install 'prl-core[hub]', or give a local directory",
        ) from error
    try:
        return Path(snapshot_download(hub_id, revision=revision, allow_patterns=_HUB_FILES))
    except (OSError, ValueError, HfHubHTTPError) as error:
        raise TokenizerError(
            f"cannot get the tokenizer of {hub_id!r} from the hub: {str(error).strip().splitlines()[0]}",
            where=f"{hub_id} at revision {revision or 'main'}",
            next_step="check the name, the network and, for a gated model, HF_TOKEN; or give a local directory",
        ) from error
