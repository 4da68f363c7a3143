"""New weights for the running engine, from a directory or from a trainer's process: whole or not at all."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from prl.serving.checkpoints import SENT, Shapes, not_arrived, problem, refused
from prl.serving.errors import WeightLoadError
from prl.transfer import OfferBody, TransferBody
from prl.types import UNPUBLISHED, EngineError, EngineUnavailableError, Seats
from prl_engine_vllm.checkpoint import check_fits, check_values, read_shapes

from .answers import UNDEFINED_LABEL, version_of
from .state import WeightState


class WorkerFailedError(EngineError):
    """A worker raised; what it said is in `what`."""

    code = "worker_failed"


class WeightService:
    """Loads weights one directory at a time, holding `turn`.

    `served` finds the directory of the checkpoint that vLLM started with.
    """

    def __init__(
        self, engine: Any, state: WeightState, served: Callable[[], str | None], *, tied: bool, copies: int = 1
    ) -> None:
        self._engine = engine
        self._copies = copies
        self._state = state
        self._served = served
        self._tied = tied
        self.turn = asyncio.Lock()
        self._previous = served
        self._version = UNPUBLISHED
        self._identity = uuid.uuid4().hex

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
                await self._load(f"directory {directory!r}", version, "prl_load_weights", directory)
                self._previous = lambda: directory
        return version

    async def offer(self, body: OfferBody) -> Seats:
        """Check that these tensors fit, and have every worker remember them; return the workers' seats."""
        shapes = {one.name: one.shape for one in body.tensors}
        expected = await asyncio.to_thread(self.expected)
        if expected is not None:
            check_fits(shapes, expected, SENT, tied=self._tied)
        if len(shapes) < len(body.tensors):
            raise refused("a name is there twice", SENT)
        try:
            devices = await self._workers("prl_offer_weights", body.model_dump_json())
        except WorkerFailedError as error:
            raise refused(error.what, SENT) from error
        # vLLM answers for one copy of the model; the others' workers sit on GPUs of their own.
        others = [
            device if device == "cpu" else f"{device} of copy {copy}"
            for copy in range(1, self._copies)
            for device in devices
        ]
        return Seats((*devices, *others), self._identity)

    async def receive(self, body: TransferBody) -> int:
        """Receive the offered tensors between two steps of running requests; load them once these have ended.

        Raise `WeightTransferError` where they do not arrive, `WeightLoadError` where they are refused; the old weights
        serve on.
        """
        async with self.turn:
            try:
                await self._workers("prl_receive_weights", body.model_dump_json())
            except WorkerFailedError as error:
                await self._drop()
                raise not_arrived(body.transfer(), error.what) from error
            try:
                await self._workers("prl_check_received", self._tied)
            except WorkerFailedError as error:
                await self._drop()
                raise refused(error.what, SENT) from error
            async with self.between_requests():
                await self._load(SENT, body.version, "prl_load_received")
                self._previous = lambda: None
        return body.version

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
            check_fits(shapes, expected, f"directory {directory!r}", tied=self._tied)
        check_values(directory, tied=self._tied)

    async def _drop(self) -> None:
        """Have all workers leave a group that is of no further use, those too for whom all went well."""
        self._identity = uuid.uuid4().hex
        await self._workers("prl_drop_received")

    async def _load(self, where: str, version: int, method: str, *words: Any) -> None:
        try:
            await self._workers(method, *words)
        except WorkerFailedError as error:
            await self._restore(where, error)
            raise WeightLoadError(
                f"weights not loaded: {error.what}",
                where=where,
                next_step="read the server's log; the previous weights were loaded again and serve",
            ) from error
        self._state.problem = None
        await self.set_version(version)

    async def _restore(self, where: str, failure: WorkerFailedError) -> None:
        """Load the previous directory again; where that fails too, refuse everything until a good load."""
        previous = self._previous()
        reason = self._state.problem or "no directory of the weights before is known"
        if previous is not None and self._state.problem is None:
            try:
                await self._workers("prl_load_weights", previous)
                return
            except WorkerFailedError as error:
                reason = error.what
        self._state.problem = f"loading {where} failed ({failure.what}), and so did going back ({reason})"
        await self._engine.update_weight_version(UNDEFINED_LABEL)
        self._state.check()

    async def _workers(self, method: str, *words: Any) -> list[Any]:
        try:
            return list(await self._engine.collective_rpc(method, args=words) or ())
        except Exception as error:  # vLLM raises plain `Exception` for whatever a worker raised
            if self._engine.errored:
                raise EngineUnavailableError(
                    f"vLLM's engine has died: {error}", where=method, next_step="start the server again"
                ) from error
            raise WorkerFailedError(
                f"a worker failed: {error}", where=method, next_step="read the server's log"
            ) from error
