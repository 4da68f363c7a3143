"""Errors of a run as a whole."""

from __future__ import annotations

from pathlib import Path

from prl.types import PrlError


class RunError(PrlError):
    """The run cannot start or go on."""

    code = "run"


class PeerError(RunError):
    """Another process of the run failed or does not answer."""

    code = "peer"


class StorageError(RunError):
    """A file of the run cannot be written: the disk is full, a quota is used up, the file system is read-only."""

    code = "storage"


class DeadStateError(RunError):
    """Every reward is the same for many batches: there is nothing to learn from."""

    code = "dead_state"


def not_written(path: Path, error: OSError) -> StorageError:
    """Return the error of a file that could not be written; what it replaces, and all others, are as before."""
    return StorageError(
        f"{path.name} cannot be written: {error.strerror or error}",
        where=str(path),
        next_step="free space (or repair what it says) and go on with --resume: all that was written before is whole",
    )
