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
    with _locked(path, part) as file:
        with suppress(OSError):  # on a full disk: who holds it is told to people only
            file.truncate(0)
            file.write(str(os.getpid()).encode())
        yield


@contextmanager
def alone_in(directory: Path) -> Iterator[bool]:
    """Wait until no other process is in this block for the directory; yield whether its file system can tell."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            is_alone = True
        except OSError:  # no locks there, or none of directories
            is_alone = False
        yield is_alone
    finally:
        os.close(handle)


def _locked(path: Path, part: str) -> FileIO:
    """Return the lock file, locked: the one that has its name now, not one that was removed with an earlier run."""
    while True:
        file = _open(path)
        try:
            _lock(file, path, part)
        except BaseException:
            file.close()
            raise
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        file.close()


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
