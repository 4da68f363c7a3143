"""The engine contract over a vLLM server that runs as a child process."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from types import FrameType

from prl.client import HttpEngineClient
from prl.types import EngineUnavailableError

from .child import POLL_SECONDS, VllmProcess
from .options import VllmEngineOptions


def create(options: VllmEngineOptions) -> VllmEngine:
    """Return an engine that has started nothing yet."""
    return VllmEngine(options)


class VllmEngine:
    """One vLLM server, as long as this engine lives; `start` returns once prl's routes answer."""

    def __init__(self, options: VllmEngineOptions) -> None:
        self.options = options
        self._process: VllmProcess | None = None

    async def start(self) -> None:
        """Start the server and wait until it is ready; raise what kept it from that, with the end of its log."""
        if self._process is not None:
            return
        process = VllmProcess(self.options)
        try:
            await asyncio.to_thread(process.start, in_foreground=False)
            while not await asyncio.to_thread(process.poll):
                await asyncio.sleep(POLL_SECONDS)
        except BaseException:
            await asyncio.to_thread(process.stop)
            raise
        self._process = process

    def client(self) -> HttpEngineClient:
        """Return a client of the server; raise `EngineUnavailableError` before `start`."""
        return HttpEngineClient(self.url)

    @property
    def url(self) -> str:
        """The server's address; raise `EngineUnavailableError` before `start` and after `stop`."""
        if self._process is None:
            raise EngineUnavailableError(
                "the engine is not started", where=f"vLLM for {self.options.model!r}", next_step="await engine.start()"
            )
        return self._process.url

    async def stop(self) -> None:
        """End the server and whatever it started."""
        process, self._process = self._process, None
        if process is not None:
            await asyncio.to_thread(process.stop)

    def serve(self) -> None:
        """Run the server in the foreground until interrupted; raise `EngineUnavailableError` if it ends by itself."""
        process = VllmProcess(self.options)
        before = signal.signal(signal.SIGTERM, _interrupt)
        try:
            process.start(in_foreground=True)
            while not process.poll():
                time.sleep(POLL_SECONDS)
            print(f"serving {self.options.name!r} at {process.url}", file=sys.stderr, flush=True)
            while True:
                process.check_alive()
                time.sleep(POLL_SECONDS)
        except KeyboardInterrupt:
            pass
        finally:
            signal.signal(signal.SIGTERM, before)
            process.stop()


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
