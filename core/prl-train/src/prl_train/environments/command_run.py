"""Run one command in a folder, with a time limit, and end everything it started."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from prl.types import ConfigError

CHUNK = 1 << 16
GRACE_SECONDS = 5.0
"""How long the output of a command that was killed may still take."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended: `status` is its exit status (minus a signal's number), None where it took too long."""

    status: int | None
    output: str


async def run_command(
    words: Sequence[str], folder: Path, environment: Mapping[str, str], *, seconds: float, keep: int
) -> Ended:
    """Run a command to its end; keep the last `keep` bytes of what it prints.

    At its end, at the time limit and when cancelled, its whole process group is killed. Raises `ConfigError` where it
    cannot be started.
    """
    # A pipe of our own: asyncio's would have `wait` last as long as any grandchild holds it.
    read_end, write_end = os.pipe()
    try:
        process = await asyncio.create_subprocess_exec(
            *words,
            cwd=folder,
            env=dict(environment),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=write_end,
            stderr=write_end,
            start_new_session=True,
        )
    except OSError as error:
        os.close(read_end)
        raise ConfigError(
            f"the command cannot be started: {error}",
            where=" ".join(words),
            next_step="name a program that is on the PATH, or an absolute path",
        ) from error
    except BaseException:
        os.close(read_end)
        raise
    finally:
        os.close(write_end)
    tail = _Tail(keep)
    reading = asyncio.create_task(tail.read(read_end))
    try:
        status = await _status(process, seconds)
    finally:
        _kill_group(process.pid)
        await process.wait()
        await asyncio.wait([reading], timeout=GRACE_SECONDS)  # a process that left the group may hold the pipe
        reading.cancel()
    return Ended(status, tail.text())


async def _status(process: asyncio.subprocess.Process, seconds: float) -> int | None:
    try:
        return await asyncio.wait_for(process.wait(), seconds)
    except TimeoutError:
        return None


class _Tail:
    """The last bytes of a pipe."""

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._size = 0
        self._parts: deque[bytes] = deque()

    async def read(self, read_end: int) -> None:
        """Read to the end of the pipe, and close it."""
        stream = asyncio.StreamReader()
        with os.fdopen(read_end, "rb", buffering=0) as pipe:
            transport, _ = await asyncio.get_running_loop().connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(stream), pipe
            )
            try:
                while part := await stream.read(CHUNK):
                    self._keep_last(part)
            finally:
                transport.close()

    def _keep_last(self, part: bytes) -> None:
        self._parts.append(part)
        self._size += len(part)
        while self._size - len(self._parts[0]) >= self._keep:
            self._size -= len(self._parts.popleft())

    def text(self) -> str:
        return b"".join(self._parts)[-self._keep :].decode("utf-8", errors="replace")


def _kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # nobody is left; on macOS a group of zombies is not permitted
        return
