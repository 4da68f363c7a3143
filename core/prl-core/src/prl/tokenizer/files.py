"""Read a tokenizer's files: tokenizer.json, its config, its chat templates."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prl.types import TokenizerError


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerFiles:
    """What a tokenizer directory says. `chat_templates` holds "default" and any named ones."""

    tokenizer_json: str
    chat_templates: dict[str, str] = field(default_factory=dict)
    bos_token: str | None = None
    eos_token: str | None = None


def read_directory(path: Path) -> TokenizerFiles:
    """Read a directory, or a tokenizer.json and its siblings; raise `TokenizerError` where one is missing or broken."""
    directory, main = (path, path / "tokenizer.json") if path.is_dir() else (path.parent, path)
    if not main.is_file():
        raise TokenizerError(f"no tokenizer.json in {directory}", where=str(main), next_step=_advice(directory))
    config = _read_json(directory / "tokenizer_config.json")
    return TokenizerFiles(
        tokenizer_json=_read_text(main),
        chat_templates=_chat_templates(directory, config),
        bos_token=_token_text(config.get("bos_token")),
        eos_token=_token_text(config.get("eos_token")),
    )


def _chat_templates(directory: Path, config: dict[str, Any]) -> dict[str, str]:
    """Collect templates; a file of its own wins over the config, as in transformers."""
    templates: dict[str, str] = {}
    inline = config.get("chat_template")
    if inline is None:
        inline = _read_json(directory / "chat_template.json").get("chat_template")
    if isinstance(inline, str):
        templates["default"] = inline
    elif isinstance(inline, list):
        templates.update({entry["name"]: entry["template"] for entry in inline})
    elif isinstance(inline, dict):
        templates.update(inline)
    for extra in sorted((directory / "additional_chat_templates").glob("*.jinja")):
        templates[extra.stem] = _read_text(extra)
    own_file = directory / "chat_template.jinja"
    if own_file.is_file():
        templates["default"] = _read_text(own_file)
    return templates


def _token_text(value: Any) -> str | None:
    """Read a token given as text or as an `AddedToken` mapping."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        data = json.loads(_read_text(path))
    except ValueError as error:
        raise _broken(path, error) from error
    if not isinstance(data, dict):
        raise _broken(path, TypeError(f"it holds a {type(data).__name__}, not an object"))
    return data


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise _broken(path, error) from error


def _broken(path: Path, error: Exception) -> TokenizerError:
    return TokenizerError(
        f"cannot read {path.name}: {error}", where=str(path), next_step="download or write the tokenizer's files again"
    )


def _advice(directory: Path) -> str:
    """Say what to do about a directory that holds another kind of tokenizer."""
    for name, how in (
        ("tiktoken.model", "build a tiktoken.Encoding from tiktoken.model and pass it to as_tokenizer"),
        ("tokenizer.model", "convert it: transformers.AutoTokenizer.from_pretrained(dir).save_pretrained(dir)"),
    ):
        if (directory / name).exists():
            return how
    return "give the directory that holds the model's tokenizer.json"
