"""Choose a renderer: by name, or "auto" by exact model id, then by the sha256 of the chat template. Nothing else."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence

from prl.types import PluginError, close_names

from .known import known_renderers
from .missing import install_hint, unloaded_provider
from .process import get_registry
from .records import RendererEntry
from .registry import Registry

AUTO = "auto"


class RendererMismatchWarning(UserWarning):
    """The checkpoint's chat template is not one that the chosen renderer was written for."""


def template_sha256(chat_template: str) -> str:
    """Return the sha256 of a chat template in UTF-8 with LF line ends, as records list it."""
    text = chat_template.replace("\r\n", "\n").replace("\r", "\n")
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def resolve_renderer(name: str = AUTO, *, model: str | None = None, chat_template: str | None = None) -> RendererEntry:
    """Return the renderer a name means; "auto" needs an exact model id or a known chat template.

    Raises `PluginError` with what to install or to write where nothing matches; never guesses by prefix or substring.
    Warns with `RendererMismatchWarning` where the model id matches and the checkpoint's template is a different one.
    """
    registry = get_registry()
    if name != AUTO:
        return registry.find(RendererEntry, name)
    digest = template_sha256(chat_template) if chat_template else None
    by_model = _one(registry, f"model id {model!r}", [e for e in _entries(registry) if model and model in e.models])
    by_template = _one(registry, "this chat template", [e for e in _entries(registry) if digest in e.templates])
    if by_model is None:
        if by_template is None:
            raise _unresolved(registry, model, digest)
        return by_template
    if digest and by_model.templates and digest not in by_model.templates:
        other = f"; it is the template of renderer {by_template.name!r}" if by_template else ""
        warnings.warn(
            f"model {model!r} means renderer {by_model.name!r}, and the chat template beside the tokenizer is not one "
            f"that renderer was written for{other}. Set renderer = {by_model.name!r} to say that it is meant.",
            RendererMismatchWarning,
            stacklevel=2,
        )
    return by_model


def _entries(registry: Registry) -> list[RendererEntry]:
    return registry.all(RendererEntry)


def _one(registry: Registry, what: str, entries: Sequence[RendererEntry]) -> RendererEntry | None:
    if len(entries) > 1:
        listed = "; ".join(f"{entry.name!r} of {registry.provider(entry)}" for entry in entries)
        raise PluginError(
            f"{len(entries)} renderers claim {what}",
            where=listed,
            next_step="Choose one by name: " + " or ".join(f'renderer = "{entry.name}"' for entry in entries),
        )
    return entries[0] if entries else None


def _unresolved(registry: Registry, model: str | None, digest: str | None) -> PluginError:
    entries = _entries(registry)
    known = known_renderers(model=model, template=digest)
    broken = unloaded_provider(registry.plugins(), known)
    if broken:
        return broken
    close = close_names(model, [one for entry in entries for one in entry.models]) if model else ""
    names = ", ".join(entry.name for entry in entries) or "none"
    hints = (
        close,
        install_hint("renderer", known, registry.plugins()),
        f'Or name one: renderer = "NAME", with NAME among: {names}.',
        "A fine-tune takes the renderer of its base model.",
    )
    seen = f"model id {model!r}" if model else "no model id"
    return PluginError(
        'renderer = "auto" matches no renderer',
        where=f"{seen}, " + (f"chat template sha256 {digest}" if digest else "no chat template"),
        next_step=" ".join(filter(None, hints)),
    )
