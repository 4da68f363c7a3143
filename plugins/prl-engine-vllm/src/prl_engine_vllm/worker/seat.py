"""A worker's seat in a transfer of weights: what was offered, and what has come in but is not loaded yet."""

from __future__ import annotations

import importlib
from typing import Any

from prl.transfer import OfferBody, TransferBody, WeightIntake
from prl.types import WeightManifest

_ATTRIBUTE = "prl_seat"


class Seat:
    """Receives into CPU memory, between two engine steps. Arguments are JSON, since they cross processes."""

    def __init__(self, device: str) -> None:
        self._intake = WeightIntake(importlib.import_module("torch"), device)
        self._offered = WeightManifest(())
        self.tensors: dict[str, Any] = {}

    def offer(self, body: str) -> str:
        """Remember an offer; return the device's name."""
        manifest = OfferBody.model_validate_json(body).manifest()
        self._intake.check(manifest)
        self._offered = manifest
        return self._intake.device

    def receive(self, body: str) -> int:
        """Receive the offered tensors; return their number."""
        self.tensors = {}
        self.tensors = self._intake.receive(self._offered, TransferBody.model_validate_json(body).transfer())
        return len(self.tensors)

    def take(self) -> dict[str, Any]:
        """Return what was received, and keep none of it."""
        tensors, self.tensors = self.tensors, {}
        return tensors

    def drop(self) -> None:
        """Forget what was received and leave the group."""
        self.tensors = {}
        self._intake.leave()


def seat_of(worker: Any) -> Seat:
    """Return a worker's seat, made at its first use."""
    seat: Seat | None = getattr(worker, _ATTRIBUTE, None)
    if seat is None:
        seat = Seat(str(getattr(worker, "device", None) or "cpu"))
        setattr(worker, _ATTRIBUTE, seat)
    return seat
