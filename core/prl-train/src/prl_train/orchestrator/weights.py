"""Bring each version of the weights into the engine: from a directory, or straight from the trainer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from prl.contracts import EngineClient
from prl.types import UNPUBLISHED
from prl_train.run import PeerError, RunFolder
from prl_train.transfer.board import TransferBoard
from prl_train.transfer.desk import TransferDesk

POLL_SECONDS = 0.02


class WeightFollower:
    """Polls the run folder for new weights, or for the trainer's offer of them, and brings them into the engine."""

    def __init__(self, engine: EngineClient, folder: RunFolder, *, wait_seconds: float) -> None:
        self.engine = engine
        self.folder = folder
        self.wait_seconds = wait_seconds
        self.version = UNPUBLISHED
        self._desk = TransferDesk(engine, TransferBoard(folder.transfer))

    async def follow(self, on_version: Callable[[int], None], *, until: int) -> None:
        """Load what the trainer publishes, until version `until` is in; call `on_version` after each load.

        Raises `PeerError` where the trainer failed, or where nothing new came for `wait_seconds`.
        """
        quiet_since = time.monotonic()
        while self.version < until:
            version = await self._next()
            if version is not None:
                if version > self.version:
                    self.version = version
                    on_version(version)
                quiet_since = time.monotonic()
                continue
            self.folder.status.raise_if_failed("trainer")
            self._raise_if_quiet(quiet_since)
            await asyncio.sleep(POLL_SECONDS)

    async def _next(self) -> int | None:
        """Bring in what is new, a directory first; return its version, None where nothing is new."""
        newest = self.folder.latest_weights()
        oldest = self.version if self._desk.wants_directory() else self.version + 1
        if newest is not None and newest[0] >= oldest:
            version, directory = newest
            await self.engine.load_weights(directory, version)
            self._desk.loaded()
            return version
        received = await self._desk.take(self.version)
        self._desk.tell_wants(self.version)
        return received

    def _raise_if_quiet(self, since: float) -> None:
        if time.monotonic() - since < self.wait_seconds:
            return
        raise PeerError(
            f"no weights newer than version {self.version} came for {self.wait_seconds:.0f} s",
            where=str(self.folder.weights),
            next_step="see whether `prl trainer` runs on the same run directory, or raise run.wait_seconds",
        )
