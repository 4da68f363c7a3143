"""prl: token-exact chat rendering and plugins for reinforcement learning on language models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prl.api import SupervisedSample, build_supervised_sample, create_renderer, list_renderers
    from prl.tokenizer import Tokenizer, load_tokenizer
    from prl.types import ParsedResponse, PrlError, RenderedTokens

__version__ = "0.1.0"

_PUBLIC = {
    "ParsedResponse": "prl.types",
    "PrlError": "prl.types",
    "RenderedTokens": "prl.types",
    "SupervisedSample": "prl.api",
    "Tokenizer": "prl.tokenizer",
    "build_supervised_sample": "prl.api",
    "create_renderer": "prl.api",
    "list_renderers": "prl.api",
    "load_tokenizer": "prl.tokenizer",
}

__all__ = [
    "ParsedResponse",
    "PrlError",
    "RenderedTokens",
    "SupervisedSample",
    "Tokenizer",
    "build_supervised_sample",
    "create_renderer",
    "list_renderers",
    "load_tokenizer",
]


def __getattr__(name: str) -> Any:
    """Import public names on first use, so that `import prl` (and every `prl` command) stays quick."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'prl' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names."""
    return sorted([*globals(), *_PUBLIC])
