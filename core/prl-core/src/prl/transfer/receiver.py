"""The receiving end: an offer is remembered, its tensors come in, and nothing of the model is touched."""

from __future__ import annotations

import math
import uuid
from typing import Any

from prl.types import TensorSpec, WeightManifest, WeightTransfer

from .group import GroupError, TransferGroup


def device_name(torch: Any, device: str) -> str:
    """Return the unique id of a GPU that NCCL can reach, "cpu" for everything else."""
    if not device.startswith("cuda") or not torch.distributed.is_nccl_available():
        return "cpu"
    return str(torch.cuda.get_device_properties(device).uuid)


class WeightIntake:
    """Receives the tensors of one process, into CPU memory. Not thread-safe: one transfer at a time.

    `torch` is the module, `device` where the model is ("cpu", "cuda:0"). `identity` is another one in every process,
    and after every failure.
    """

    def __init__(self, torch: Any, device: str) -> None:
        self.identity = uuid.uuid4().hex
        self._torch = torch
        self._device = device
        self._group: TransferGroup | None = None

    @property
    def device(self) -> str:
        """The device as others know it; see `device_name`."""
        return device_name(self._torch, self._device)

    def check(self, manifest: WeightManifest) -> None:
        """Raise `GroupError` where a tensor's type is unknown here, or its size is not that of its shape."""
        for spec in manifest.tensors:
            kind = getattr(self._torch, spec.dtype, None)
            if not isinstance(kind, self._torch.dtype):
                raise GroupError(f"{spec.name!r} has type {spec.dtype!r}, which this torch does not know")
            if spec.size != math.prod(spec.shape) * kind.itemsize:
                raise GroupError(f"{spec.name!r} has {spec.size} bytes, which are not {list(spec.shape)} {spec.dtype}")

    def receive(self, manifest: WeightManifest, transfer: WeightTransfer) -> dict[str, Any]:
        """Return the tensors by name, once all are there; raise `GroupError` where they do not come."""
        if manifest.digest != transfer.digest:
            raise GroupError("what is to be sent is not what was offered")
        self.check(manifest)
        try:
            return self._fill(manifest, transfer, self._joined(transfer))
        except BaseException:
            self.leave()
            self.identity = uuid.uuid4().hex  # nobody may count on this seat's old group
            raise

    def leave(self) -> None:
        """Leave the group; the next transfer makes one anew."""
        group, self._group = self._group, None
        if group is not None:
            group.close()

    def _joined(self, transfer: WeightTransfer) -> TransferGroup:
        if self._group is not None and self._group.name == transfer.group:
            self._group.wait_for_sender(transfer)
        else:
            self.leave()
            self._group = TransferGroup.join(self._torch, transfer, self._device)
        return self._group

    def _fill(self, manifest: WeightManifest, transfer: WeightTransfer, group: TransferGroup) -> dict[str, Any]:
        flat = [self._torch.empty(spec.size, dtype=self._torch.uint8) for spec in manifest.tensors]
        buffer = group.buffer(min(transfer.bucket_bytes, _padded(manifest)))
        for pieces in manifest.buckets(transfer.bucket_bytes):
            group.broadcast(buffer[: pieces[-1].end])
            for piece in pieces:
                flat[piece.tensor][piece.start : piece.start + piece.length].copy_(buffer[piece.offset : piece.end])
        return {spec.name: self._shaped(data, spec) for data, spec in zip(flat, manifest.tensors, strict=True)}

    def _shaped(self, data: Any, spec: TensorSpec) -> Any:
        return data.view(getattr(self._torch, spec.dtype)).view(spec.shape)


def _padded(manifest: WeightManifest) -> int:
    """Return no fewer bytes than the tensors take up with what aligns them."""
    return manifest.size + 16 * len(manifest.tensors)
