"""A gateway dies in the middle of its work, and another takes over what it left."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .conftest import Served

ASKED = [{"role": "user", "content": "Hi"}]
GO_ON = {"role": "user", "content": "Go on."}
Serve = Callable[..., Any]


def more(message: dict[str, Any]) -> list[dict[str, Any]]:
    return [*ASKED, message, GO_ON]


def rows(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]


def kept(out: Path) -> list[Path]:
    """The files of open sessions."""
    return sorted(out.with_name(f"{out.name}.open").glob("*"))


async def die(served: Served) -> None:
    """Leave a gateway as a killed process would: nothing is ended, written or removed any more."""
    gateway = served.gateway
    assert gateway._reaper is not None
    assert gateway._file is not None
    gateway._reaper.cancel()
    gateway._file.append = lambda record: pytest.fail("a dead gateway writes")  # type: ignore[method-assign]
    for session in served.sessions():
        for task in (*(asked.task for asked in session._running), *session._notes):
            task.cancel()
    if gateway._journal is not None:  # what its threads had begun would be written behind what the test then writes
        await asyncio.to_thread(gateway._journal._threads.shutdown)
    await gateway._runner.cleanup()
    gateway._runner = None
    gateway._file._lock.close()
    gateway._sessions.clear()
    gateway._unwritten.clear()


async def again(serve: Serve, served: Served, out: Path, **changes: Any) -> Served:
    """Kill a gateway and start one on the same output, whose weights are newer."""
    await die(served)
    second: Served = await serve(out=out, **changes)
    second.engine.version = served.engine.version + 1
    return second
