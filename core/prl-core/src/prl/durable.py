"""Files that only whole lines are appended to, and that a crash or a full disk leaves readable."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

BLOCK = 1 << 16


def append(path: Path, data: bytes, *, mode: int = 0o644, sync: bool = True) -> None:
    """Append whole lines, or nothing: what a full disk cut off is taken back.

    Returns when they would outlive a power cut; without `sync`, when they would outlive this process.
    """
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, mode)
    try:
        before = os.fstat(handle).st_size
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(handle, rest) :]
            if sync:
                os.fsync(handle)
        except OSError:
            os.ftruncate(handle, before)
            raise
    finally:
        os.close(handle)
    if sync and not before:
        _sync_folder(path.parent)


def remove(path: Path) -> None:
    """Remove a file where it exists; return when it would be gone after a power cut."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
        _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def cut_torn_line(path: Path, *, keep: Path | None = None) -> None:
    """Cut off what stands behind the last line feed; append it to another file first, where one is given."""
    with contextlib.suppress(FileNotFoundError), path.open("rb+") as file:
        end = next(_line_feeds(file), -1) + 1
        file.seek(end)
        torn = file.read()
        if torn and keep is not None:
            append(keep, torn + b"\n")
        if torn:
            file.truncate(end)


def start_of_last_line(path: Path, size: int) -> bytes:
    """Return the first bytes of the last whole line; b"" where there is none."""
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        feeds = _line_feeds(file)
        end = next(feeds, None)
        if end is None:
            return b""
        start = next(feeds, -1) + 1
        file.seek(start)
        return file.read(min(size, end - start))
    return b""


def _line_feeds(file: BinaryIO) -> Iterator[int]:
    """Yield where line feeds stand, from the last to the first."""
    end = file.seek(0, os.SEEK_END)
    while end > 0:
        start = max(0, end - BLOCK)
        file.seek(start)
        block = file.read(end - start)
        found = block.rfind(b"\n")
        while found >= 0:
            yield start + found
            found = block.rfind(b"\n", 0, found)
        end = start
