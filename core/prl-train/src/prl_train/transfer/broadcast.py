"""The trainer's side of a transfer: offer a version, wait for the orchestrator's word, send, try once more."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable

from prl.transfer import GroupError
from prl.types import WeightManifest, WeightTransfer
from prl_train.run import RunFolder
from prl_train.trainer import Trainer

from .board import Answer, Offer, TransferBoard
from .sender import TensorStream, WeightSender, manifest_of

POLL_SECONDS = 0.005
TRIES = 2
log = logging.getLogger("prl.transfer")


class Broadcast:
    """Sends versions of a trainer's weights to the engines of a run.

    Every process of the trainer makes the same calls; the main one offers and sends.
    """

    def __init__(self, trainer: Trainer, folder: RunFolder) -> None:
        self._trainer = trainer
        self._world = trainer.world
        self._config = trainer.config.transfer
        self._folder = folder
        self._board = TransferBoard(folder.transfer)
        self._sender: WeightSender | None = None
        if self._world.is_main:
            self._board.withdraw()  # an offer that a killed trainer left

    def send(self, version: int, is_over: Callable[[], bool]) -> bool:
        """Return whether the engines have the version now, or had it; where not, it must go through a directory.

        `is_over` says that nobody waits for weights any more.
        """
        outgoing = self._trainer.outgoing_weights()
        manifest = manifest_of(outgoing)
        for attempt in range(TRIES):
            answer = self._world.from_main(self._ask(version, manifest, is_over) if self._world.is_main else None)
            if answer is None or answer.transfer is None:
                return answer is not None and answer.done
            stream = TensorStream(outgoing, manifest, answer.transfer.bucket_bytes)
            if not self._world.is_main:
                stream.accompany()
            is_there = self._world.from_main(self._send(stream, answer.transfer) if self._world.is_main else None)
            if is_there:
                return True
            if self._world.is_main and attempt + 1 < TRIES:
                log.warning("weights %d are sent once more, over a new group", version)
        return False

    def wanted(self) -> int | None:
        """Return the version that engines want a directory of, None where they want none."""
        return self._board.wanted()

    def close(self) -> None:
        """End the group and what stands on offer."""
        if self._sender is not None:
            self._sender.leave()
        if self._world.is_main:
            self._board.withdraw()

    def _ask(self, version: int, manifest: WeightManifest, is_over: Callable[[], bool]) -> Answer | None:
        """Offer a version and return the answer; None where none came in time."""
        sender = self._sender = self._sender or WeightSender(self._config, self._trainer.model.device)
        offer = Offer(
            id=uuid.uuid4().hex,
            version=version,
            address=sender.address,
            device=sender.device,
            sender=sender.id,
            held=sender.held,
            digest=manifest.digest,
            backend=self._config.backend,
            bucket_bytes=int(self._config.bucket_mb * 1e6),
            seconds=self._config.seconds,
        )
        self._board.offer(offer, manifest)
        try:
            answer = self._wait_for_answer(offer, is_over)
        finally:
            self._board.withdraw()
        if answer is None and not is_over():
            log.warning("nobody took weights %d within %g s; they go through a directory", version, offer.seconds)
        elif answer is not None and answer.reason:
            log.warning("weights %d go through a directory: %s", version, answer.reason)
        return answer

    def _wait_for_answer(self, offer: Offer, is_over: Callable[[], bool]) -> Answer | None:
        until = time.monotonic() + offer.seconds
        while time.monotonic() < until and not is_over():
            answer = self._board.answer_to(offer.id)
            if answer is not None:
                return answer
            self._folder.status.raise_if_failed("orchestrator")
            time.sleep(POLL_SECONDS)
        return None

    def _send(self, stream: TensorStream, transfer: WeightTransfer) -> bool:
        assert self._sender is not None
        try:
            send = self._sender.begin(transfer)
        except GroupError as error:
            self._give_up(transfer, error)
            stream.accompany()  # the other processes gather, and cannot be told not to
            return False
        try:
            stream.send(self._sender.buffer(stream.largest), send)
        except GroupError as error:
            self._give_up(transfer, error)
            return False
        return True

    def _give_up(self, transfer: WeightTransfer, error: GroupError) -> None:
        log.warning("weights %d were not sent: %s", transfer.version, error)
        assert self._sender is not None
        self._sender.leave()
