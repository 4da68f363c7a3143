"""Start the trainer's processes on this machine, as torchrun would; end them when one fails or when we end."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from prl_train.errors import WorkerError

from .world import FAILURE, STORE_PREFIX

POLL_SECONDS = 0.05
GRACE_SECONDS = 10.0
_STOP = b"stop\n"


class LocalProcesses:
    """N processes of one Python command. Their standard input is the line to us: its end is our end.

    We hold the store through which they find each other, so that word of a failure outlives who left it.
    """

    def __init__(self, size: int, words: Sequence[str]) -> None:
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._processes = [self._start(rank, size, words) for rank in range(size)]

    def _start(self, rank: int, size: int, words: Sequence[str]) -> subprocess.Popen[bytes]:
        place = {
            "RANK": rank,
            "LOCAL_RANK": rank,
            "WORLD_SIZE": size,
            "LOCAL_WORLD_SIZE": size,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": self._store.port,
            # The store is ours: no rank opens one of its own.
            "TORCHELASTIC_USE_AGENT_STORE": True,
        }
        defaults = {"GLOO_SOCKET_IFNAME": loopback(), "OMP_NUM_THREADS": "1"}
        environment = {**defaults, **os.environ, **{name: str(value) for name, value in place.items()}}
        return subprocess.Popen([sys.executable, *words], env=environment, stdin=subprocess.PIPE)

    @property
    def pids(self) -> list[int]:
        """The ids of the processes, in order of rank."""
        return [process.pid for process in self._processes]

    def wait(self, stop: threading.Event) -> None:
        """Return when all have ended well; `stop` asks them to come to an end.

        Raises `WorkerError` with the first failure; the other processes are ended then.
        """
        asked = False
        while True:
            codes = [process.poll() for process in self._processes]
            if any(codes):
                self.end()
                raise self._error(codes)
            if None not in codes:
                return
            if stop.is_set() and not asked:
                asked = True
                self._ask_to_stop()
            time.sleep(POLL_SECONDS)

    def _ask_to_stop(self) -> None:
        for process in self._processes:
            if process.stdin is not None:
                with suppress(BrokenPipeError):  # it has ended by itself
                    process.stdin.write(_STOP)
                    process.stdin.flush()

    def _error(self, codes: Sequence[int | None]) -> WorkerError:
        """Return what happened: a process that was killed, else the first failure that was told, else an exit code."""
        killed = next((rank for rank, code in enumerate(codes) if code and code < 0), None)
        told = self._told() if killed is None else None
        if told is not None:
            what = f"trainer process {told['rank']} failed: {told['what']}"
            step = told["next_step"] or "repair what it says, then go on with --resume"
        elif killed is not None:
            what = f"trainer process {killed} was killed by signal {-(codes[killed] or 0)}"
            step = "signal 9 is often the system out of memory: train with less, then go on with --resume"
        else:
            rank = next(rank for rank, code in enumerate(codes) if code)
            what = f"trainer process {rank} ended with {codes[rank]}"
            step = "see what it wrote to stderr, then go on with --resume"
        return WorkerError(what, where=f"{len(codes)} trainer processes on this machine", next_step=step)

    def _told(self) -> dict[str, Any] | None:
        key = f"{STORE_PREFIX}/{FAILURE}"
        told: dict[str, Any] | None = json.loads(self._store.get(key)) if self._store.check([key]) else None
        return told

    def end(self) -> None:
        """End the processes that are left: first by closing their line, then by force."""
        for process in self._processes:
            if process.stdin is not None:
                with suppress(BrokenPipeError):
                    process.stdin.close()
        deadline = time.monotonic() + GRACE_SECONDS
        for process in self._processes:
            try:
                process.wait(max(deadline - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class ParentLine:
    """The other end, in a started process: `stop` is set when the parent asks; with the parent this process ends."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        threading.Thread(target=self._listen, name="parent", daemon=True).start()

    def _listen(self) -> None:
        while os.read(sys.stdin.fileno(), 64):
            self.stop.set()
        # At once: the main thread may wait for others in a collective, and nobody reads what it would still write.
        os._exit(1)


def loopback() -> str:
    """Return the name of the interface of 127.0.0.1, for backends that would else look the host's name up."""
    return next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "lo")
