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
_held: set[FileIO] = set()


def _let_go() -> None:
    """Close in a forked child what its parent holds: a child that outlives it would keep the next process out."""
    for file in _held:
        file.close()
    _held.clear()


os.register_at_fork(after_in_child=_let_go)


@contextmanager
def hold(path: Path, part: str) -> Iterator[bool]:
    """Hold the lock file of a part; raise `RunError` where another process does. A killed process holds nothing.

    Yields whether the file system can tell.
    """
    file, is_certain = _locked(path, part)
    _held.add(file)
    try:
        with suppress(OSError):  # on a full disk: who holds it is told to people only
            file.truncate(0)
            file.write(str(os.getpid()).encode())
        yield is_certain
    finally:
        _held.discard(file)
        file.close()


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
        with suppress(OSError):  # closing alone would leave it to children that were forked meanwhile
            fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)


def _locked(path: Path, part: str) -> tuple[FileIO, bool]:
    """Return the lock file and whether it is locked: the file of that name now, not one removed with an earlier run."""
    while True:
        file = _open(path)
        try:
            is_certain = _lock(file, path, part)
        except BaseException:
            file.close()
            raise
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file, is_certain
        file.close()


def _open(path: Path) -> FileIO:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("ab+", buffering=0)
    except OSError as error:
        raise not_written(path, error) from error


def _lock(file: FileIO, path: Path, part: str) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except OSError as error:
        if error.errno not in HELD:  # a file system without locks
            print(f"prl: {path} cannot be locked ({error.strerror}): start no second {part}", file=sys.stderr)
            return False
        file.seek(0)
        raise RunError(
            f"another {part} of this run is running: process {file.read().decode() or 'unknown'}",
            where=str(path),
            next_step="end that process first, or name another run.directory",
        ) from error
