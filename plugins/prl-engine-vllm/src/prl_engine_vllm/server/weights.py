"""`POST /v1/weights`: a published directory into the running engine, whole or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from prl.types import EngineError, EngineUnavailableError
from prl_engine_vllm.checkpoint import Shapes, check_fits, check_values, problem, read_shapes
from prl_engine_vllm.errors import WeightLoadError

from .answers import UNDEFINED_LABEL, version_of
from .state import WeightState


class WorkerFailedError(EngineError):
    """A worker raised; what it said is in `what`."""

    code = "worker_failed"


class WeightService:
    """Loads weights one directory at a time, holding `turn`.

    `served` finds the directory of the checkpoint that vLLM started with.
    """

    def __init__(self, engine: Any, state: WeightState, served: Callable[[], str | None], *, tied: bool) -> None:
        self._engine = engine
        self._state = state
        self._served = served
        self._tied = tied
        self.turn = asyncio.Lock()
        self._directory: str | None = None
        self._version = 0

    async def version(self) -> int:
        """Return the version of the weights that are served, at once also while a load keeps the engine busy."""
        self._state.check()
        if not self.turn.locked():
            self._version = version_of(await self._engine.get_weight_version())
        return self._version

    async def load(self, directory: str, version: int) -> int:
        """Check the directory while requests run, let them end, load it; return the version.

        Requests that arrive meanwhile wait. Raise `WeightLoadError` where it does not fit; the old weights serve on.
        """
        async with self.turn:  # two loads at once finish in the order they came
            await asyncio.to_thread(self._check, directory)
            try:
                await self._workers("prl_check_weights", directory)
            except WorkerFailedError as error:
                raise problem(error.what, directory) from error
            async with self.between_requests():
                await self._load(directory, version)
        return version

    @asynccontextmanager
    async def between_requests(self) -> AsyncIterator[None]:
        """Let running requests end and hold new ones; forget every cached prefix. Undefined weights stay paused."""
        was_paused = self._state.problem is None and await self._engine.is_paused()
        await self._engine.pause_generation(mode="wait", clear_cache=True)
        try:
            yield
        finally:
            if self._state.problem is None and not was_paused:
                await self._engine.resume_generation()

    async def set_version(self, version: int) -> None:
        """Label what is sampled from now on; call it between requests."""
        await self._engine.update_weight_version(str(version))
        self._version = version

    def expected(self) -> Shapes | None:
        """Return names and shapes of the served checkpoint; None for a model of random weights, which has none."""
        directory = self._served()
        return None if directory is None else read_shapes(directory)

    def _check(self, directory: str) -> None:
        shapes = read_shapes(directory)
        expected = self.expected()
        if expected is not None:
            check_fits(shapes, expected, directory, tied=self._tied)
        check_values(directory, tied=self._tied)

    async def _load(self, directory: str, version: int) -> None:
        try:
            await self._workers("prl_load_weights", directory)
        except WorkerFailedError as error:
            await self._restore(directory, error)
            raise WeightLoadError(
                f"weights not loaded: {error.what}",
                where=f"directory {directory!r}",
                next_step="read the server's log; the previous weights were loaded again and serve",
            ) from error
        self._state.problem = None
        self._directory = directory
        await self.set_version(version)

    async def _restore(self, directory: str, failure: WorkerFailedError) -> None:
        """Load the previous directory again; where that fails too, refuse everything until a good load."""
        previous = self._directory or self._served()
        reason = self._state.problem or "no earlier directory is known"
        if previous is not None and self._state.problem is None:
            try:
                await self._workers("prl_load_weights", previous)
                return
            except WorkerFailedError as error:
                reason = error.what
        self._state.problem = f"loading {directory!r} failed ({failure.what}), and so did going back ({reason})"
        await self._engine.update_weight_version(UNDEFINED_LABEL)
        self._state.check()

    async def _workers(self, method: str, directory: str) -> None:
        try:
            await self._engine.collective_rpc(method, args=(directory,))
        except Exception as error:  # vLLM raises plain `Exception` for whatever a worker raised
            if self._engine.errored:
                raise EngineUnavailableError(
                    f"vLLM's engine has died: {error}", where=method, next_step="start the server again"
                ) from error
            raise WorkerFailedError(
                f"a worker failed: {error}", where=f"directory {directory!r}", next_step="read the server's log"
            ) from error
