"""A module's main as several processes of this machine, which read one configuration; both ends of it."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from prl.types import PrlError

from .local import LocalProcesses, ParentLine

Config = TypeVar("Config", bound=BaseModel)


def run_configured(module: str, config: BaseModel, size: int, stop: threading.Event, *words: str) -> None:
    """Start the processes and wait for their end; raise `WorkerError` where one fails. `words` follow the config."""
    with tempfile.TemporaryDirectory(prefix="prl-trainers-") as folder:
        # JSON, not TOML: an option that is null must stay null.
        settings = Path(folder) / "config.json"
        settings.write_text(config.model_dump_json(), encoding="utf-8")
        processes = LocalProcesses(size, ["-m", module, str(settings), *words])
        try:
            processes.wait(stop)
        finally:
            processes.end()


def be_configured(kind: type[Config], settings: str, work: Callable[[Config, threading.Event], None]) -> int:
    """Be one of the processes: do the work, whose event is set when the parent asks to stop; return the exit code."""
    line = ParentLine()
    config = kind.model_validate_json(Path(settings).read_text(encoding="utf-8"))
    try:
        work(config, line.stop)
    except PrlError:
        return 1  # the parent has word of it
    return 0
