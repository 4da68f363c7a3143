"""Names that a configuration chooses and options that it gives them: errors are about the key where they stand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prl import create_renderer
from prl.contracts import Renderer
from prl.plugin import Record, build_options, get_registry, resolve_renderer
from prl.plugin.options import spelled
from prl.tokenizer import Tokenizer
from prl.types import PluginError, about_key


def find_chosen(kind: str, name: str, *key: str | int) -> Record:
    """Find the name that a key of the configuration chooses."""
    with about_key(*key):
        try:
            return get_registry().find(kind, name)
        except PluginError as error:
            is_listed = any(isinstance(part, int) for part in key)
            error.where = error.where or f"{_told(key) if is_listed else spelled(key)} = {name!r}"
            raise


def check_chosen(record: Record, options: Mapping[str, Any], *section: str | int) -> None:
    """Check the options that a section of the configuration gives a name."""
    build_options(record, options, where=_told(section), section=section)


def make_renderer(tokenizer: Tokenizer, name: str, options: Mapping[str, Any], *, model: str | None) -> Renderer:
    """Create the renderer that `renderer` names and `[renderer_options]` sets; `model` is what "auto" looks for."""
    with about_key("renderer"):
        known = model or tokenizer.name_or_path or None
        record = resolve_renderer(name, model=known, chat_template=tokenizer.chat_template)
    check_chosen(record, options, "renderer_options")
    with about_key("renderer"):
        return create_renderer(tokenizer, record.name, **options)


def _told(section: tuple[str | int, ...]) -> str:
    """Return a section as a TOML file opens it; of an array of tables, its entries are counted from 1."""
    for place, part in enumerate(section):
        if isinstance(part, int):
            rest = ".".join(map(str, section[place + 1 :]))
            return f"[[{'.'.join(map(str, section[:place]))}]] number {part + 1}" + (f", {rest}" if rest else "")
    return f"[{'.'.join(map(str, section))}]"
