"""Weights that come straight from a trainer: offered, received whole, checked; the model is not touched here."""

from __future__ import annotations

from typing import Any

import torch

from prl.serving.checkpoints import SENT, not_arrived, refused
from prl.transfer import GroupError, WeightIntake
from prl.types import Seats, WeightManifest, WeightTransfer

from .weights import check_fits, check_values

NOTHING = WeightManifest(())


class Intake:
    """The one seat of this engine."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._intake = WeightIntake(torch, str(model.device))
        self._offered = NOTHING

    def offer(self, manifest: WeightManifest) -> Seats:
        """Remember what will come; raise `WeightLoadError` where it does not fit the model."""
        try:
            self._intake.check(manifest)
        except GroupError as error:
            raise refused(str(error), SENT) from error
        names = [spec.name for spec in manifest.tensors]
        if len(set(names)) < len(names):
            raise refused("a name is there twice", SENT)
        check_fits(self._model, {spec.name: spec.shape for spec in manifest.tensors}, SENT)
        self._offered = manifest
        return Seats((self._intake.device,), self._intake.identity)

    def receive(self, transfer: WeightTransfer) -> dict[str, torch.Tensor]:
        """Return the offered tensors on CPU, checked; raise `WeightTransferError` or `WeightLoadError`."""
        try:
            tensors = self._intake.receive(self._offered, transfer)
        except GroupError as error:
            raise not_arrived(transfer, error) from error
        check_values(self._model, tensors, SENT)
        return tensors
