"""The two ends of a transfer inside one process: a sender, and receivers in threads."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from prl.transfer import WeightIntake
from prl.types import WeightManifest, WeightTransfer
from prl_train.trainer.weights import Outgoing
from prl_train.transfer.config import TransferConfig
from prl_train.transfer.sender import TensorStream, WeightSender, manifest_of

CPU = torch.device("cpu")


def outgoing(tensors: dict[str, Tensor]) -> list[Outgoing]:
    """Return tensors as a trainer gives them away."""
    return [
        Outgoing(name, one.dtype, one.shape, one.numel() * one.dtype.itemsize, lambda one=one: one)  # type: ignore[misc]
        for name, one in tensors.items()
    ]


class Ends:
    """One sender and the threads of the others."""

    def __init__(self, seconds: float = 10.0) -> None:
        self.seconds = seconds
        self.sender = WeightSender(TransferConfig(seconds=seconds), CPU)
        self.pool = ThreadPoolExecutor(8)

    def plan(self, manifest: WeightManifest, *, receivers: int, group: str = "g", bucket: int = 64) -> WeightTransfer:
        return WeightTransfer(
            version=1,
            digest=manifest.digest,
            address=self.sender.address,
            offer=uuid.uuid4().hex,
            group=group,
            world=1 + receivers,
            backend="gloo",
            bucket_bytes=bucket,
            seconds=self.seconds,
        )

    def send(self, tensors: Sequence[Outgoing], transfer: WeightTransfer) -> None:
        stream = TensorStream(tensors, manifest_of(tensors), transfer.bucket_bytes)
        send = self.sender.begin(transfer)
        stream.send(self.sender.buffer(stream.largest), send)

    def receive(
        self, intake: WeightIntake, manifest: WeightManifest, transfer: WeightTransfer
    ) -> Future[dict[str, Any]]:
        return self.pool.submit(intake.receive, manifest, transfer)

    def close(self) -> None:
        self.sender.leave()
        self.pool.shutdown()
