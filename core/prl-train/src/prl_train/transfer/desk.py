"""The orchestrator's side of a transfer: offers are put before the engines, and the trainer hears what they say."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import uuid
from collections.abc import Sequence

from prl.contracts import EngineClient, WeightReceiver, WeightRouter
from prl.types import EngineError, Seats, WeightManifest, WeightTransfer

from .board import Answer, Offer, TransferBoard

log = logging.getLogger("prl.transfer")


class TransferDesk:
    """Takes the trainer's offers for an engine, or for a pool of them."""

    def __init__(self, engine: EngineClient, board: TransferBoard) -> None:
        self._engine = engine
        self._board = board
        self._seen = ""
        self._group: tuple[str, ...] = ()
        self._missed: int | None = None
        self._told: int | None = None
        self._manifest = WeightManifest(())
        board.want(None)  # what an orchestrator that was killed wanted is history

    def wants_directory(self) -> bool:
        """Whether an engine needs the current weights from a directory, because it did not get them otherwise."""
        engine = self._engine
        return self._missed is not None or (isinstance(engine, WeightRouter) and engine.wants_directory())

    def tell_wants(self, version: int) -> None:
        """Keep the trainer informed whether a directory is wanted: of the engines' `version`, or of one they missed."""
        wanted = (version if self._missed is None else self._missed) if self.wants_directory() else None
        if wanted != self._told:
            self._board.want(wanted)
            self._told = wanted

    def loaded(self) -> None:
        """Note that the engines got the newest weights from a directory."""
        self._missed = None

    async def take(self, held: int) -> int | None:
        """Have the engines, which hold version `held`, receive what is on offer; return its version where they did."""
        offer = self._board.newest_offer()
        if offer is None or offer.id == self._seen:
            return None
        self._seen = offer.id
        if offer.version <= held:
            self._board.answer(Answer(offer=offer.id, done=True))
            return None
        transfer = await self._prepare(offer)
        if transfer is None:
            return None
        group, self._group, self._missed = self._group, (), offer.version  # also where this is cancelled
        try:
            await self._receiver().receive_weights(transfer)
        except EngineError as error:
            log.warning("weights %d were not received: %s", offer.version, error.what)
            return None
        self._group, self._missed = group, None
        return offer.version

    async def _prepare(self, offer: Offer) -> WeightTransfer | None:
        """Ask the engines, and tell the trainer what comes of it; return the transfer where one does."""
        try:
            seats = await self._receiver().offer_weights(await asyncio.to_thread(self._read_manifest, offer))
        except EngineError as error:
            self._board.answer(Answer(offer=offer.id, reason=error.what))
            return None
        transfer = self._plan(offer, seats)
        self._board.answer(Answer(offer=offer.id, transfer=transfer))
        return transfer

    def _read_manifest(self, offer: Offer) -> WeightManifest:
        if self._manifest.digest != offer.digest:
            self._manifest = self._board.manifest()
        return self._manifest

    def _plan(self, offer: Offer, seats: Seats) -> WeightTransfer:
        backend = choose_backend(offer.backend, [offer.device, *seats.devices])
        # The same processes as last time, all still in their group, use it again.
        group = (offer.held, offer.sender, seats.identity, backend)
        if not offer.held or group != self._group:
            name = hashlib.sha256(f"{uuid.uuid4()} {seats.identity}".encode()).hexdigest()[:16]
            group = (name, offer.sender, seats.identity, backend)
        self._group = group
        return WeightTransfer(
            version=offer.version,
            digest=offer.digest,
            address=offer.address,
            offer=offer.id,
            group=group[0],
            world=1 + len(seats.devices),
            backend=backend,
            bucket_bytes=offer.bucket_bytes,
            seconds=offer.seconds,
        )

    def _receiver(self) -> WeightReceiver:
        if isinstance(self._engine, WeightReceiver):
            return self._engine
        raise EngineError(
            f"{type(self._engine).__name__} cannot receive weights over a process group",
            where="[trainer] weight_transfer",
            next_step='use weight_transfer = "directory"',
        )


def choose_backend(wanted: str, devices: Sequence[str]) -> str:
    """Return the backend of a group: NCCL needs a GPU for each process, and no GPU twice."""
    if wanted != "auto":
        return wanted
    return "nccl" if "cpu" not in devices and len(set(devices)) == len(devices) else "gloo"
