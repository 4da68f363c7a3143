"""One orchestrator and one trainer a run: a second of either would make and train batches twice."""

from __future__ import annotations

import errno
import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

from .errors import RunError, not_written

HELD = (errno.EAGAIN, errno.EACCES)


@contextmanager
def hold(path: Path, part: str) -> Iterator[None]:
    """Hold the lock file of a part; raise `RunError` where another process does. A killed process holds nothing."""
    with _open(path) as file:
        _lock(file, path, part)
        with suppress(OSError):  # on a full disk: who holds it is told to people only
            file.truncate(0)
            file.write(str(os.getpid()).encode())
        yield


def _open(path: Path) -> FileIO:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("ab+", buffering=0)
    except OSError as error:
        raise not_written(path, error) from error


def _lock(file: FileIO, path: Path, part: str) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in HELD:  # a file system without locks
            print(f"prl: {path} cannot be locked ({error.strerror}): start no second {part}", file=sys.stderr)
            return
        file.seek(0)
        raise RunError(
            f"another {part} of this run is running: process {file.read().decode() or 'unknown'}",
            where=str(path),
            next_step="end that process first, or name another run.directory",
        ) from error
