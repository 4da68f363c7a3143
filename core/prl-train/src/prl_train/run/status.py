"""What each process of a run says about itself, so that the others do not wait for a dead one."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from .errors import PeerError, StorageError
from .files import read_json, write_json


@dataclass(frozen=True, slots=True, kw_only=True)
class PartStatus:
    """The state of one part: "running", "done", "stopped" or "failed" (then `error` is the error's text)."""

    part: str
    state: str
    process: int
    since: float
    error: str = ""


class StatusBoard:
    """The status files of one run; statuses written before this process began are history and ignored."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.began = time.time()

    def set(self, part: str, state: str, error: str = "") -> None:
        """Write this process's status; a disk that is full must not hide what failed, so it is only told on stderr."""
        status = PartStatus(part=part, state=state, process=os.getpid(), since=time.time(), error=error)
        try:
            write_json(self.directory / f"{part}.json", asdict(status))
        except StorageError as full:
            print(f"prl: the status {state!r} of the {part} could not be told to others: {full.what}", file=sys.stderr)

    def get(self, part: str) -> PartStatus | None:
        """Return a part's status, None where it has not written one since this process began."""
        value = read_json(self.directory / f"{part}.json")
        if value is None:
            return None
        status = PartStatus(**value)
        return status if status.since >= self.began else None

    def raise_if_failed(self, part: str) -> None:
        """Raise `PeerError` where the part has failed."""
        status = self.get(part)
        if status is not None and status.state == "failed":
            raise PeerError(
                f"the {part} failed: {status.error}",
                where=f"process {status.process}, {self.directory / (part + '.json')}",
                next_step=f"repair what the {part} says, then start the run again with --resume",
            )
