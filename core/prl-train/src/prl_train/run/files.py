"""Write files so that a reader sees the whole file or none: a temporary name first, then a rename."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Any

from .errors import RunError, not_written

TEMPORARY = ".*.tmp"
"""What the temporary names look like, for those that a killed process left."""


def write_bytes(path: Path, data: bytes) -> None:
    """Write `data` to `path` atomically; create the folder if needed. Raises `StorageError`, the old file stays."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise not_written(path, error) from error
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8 to `path` atomically."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """Write `value` as JSON to `path` atomically."""
    write_text(path, json.dumps(value, ensure_ascii=False, indent=1) + "\n")


def sweep(directory: Path, name: str = "") -> None:
    """Remove what a killed process left half-written, below a folder that this process alone writes to.

    Where others write to the folder as well: `name` is the file that is this process's own.
    """
    for path in directory.glob(f".{name}{TEMPORARY}") if name else directory.rglob(TEMPORARY):
        path.unlink(missing_ok=True)


def create_exclusively(path: Path, data: bytes) -> bool:
    """Write `data` to `path` unless it exists; return whether this call created it. Safe against other processes.

    Raises `StorageError` where it cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(data)
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError as error:
        raise not_written(path, error) from error
    finally:
        temporary.unlink(missing_ok=True)
    return True


def read_json(path: Path) -> Any | None:
    """Return the JSON value in `path`, None where the file does not exist; raise `RunError` where it is damaged."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    try:
        return json.loads(text)
    except ValueError as error:
        raise RunError(
            f"{path.name} is not JSON: {error}",
            where=str(path),
            next_step="the file was changed by hand or the disk is damaged; remove it, or use a new run directory",
        ) from error
