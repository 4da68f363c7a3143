"""The sending end: tensors are gathered one at a time, cut into buckets, and sent by the trainer's main process."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, cast

import torch
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from prl.transfer import GroupError, TransferGroup, device_name
from prl.types import ConfigError, TensorSpec, WeightManifest, WeightTransfer
from prl_train.trainer.weights import Outgoing

from .config import TransferConfig


def manifest_of(outgoing: Sequence[Outgoing]) -> WeightManifest:
    """Return names, types and shapes in the order in which the tensors are sent."""
    return WeightManifest(
        tuple(
            TensorSpec(one.name, str(one.dtype).removeprefix("torch."), tuple(one.shape), one.bytes) for one in outgoing
        )
    )


class WeightSender:
    """Holds the store that receivers come to, and the group of the last transfer; the main process has the only one."""

    def __init__(self, config: TransferConfig, device: torch.device) -> None:
        """Listen on the configured address; raise `ConfigError` where that cannot be."""
        self.id = uuid.uuid4().hex
        self._device = str(device)
        self._store, port = _listen(config)
        host = f"[{config.host}]" if ":" in config.host else config.host
        self.address = f"{host}:{port}"
        self._group: TransferGroup | None = None

    @property
    def device(self) -> str:
        """The trainer's device as receivers compare it with theirs."""
        return device_name(torch, self._device)

    @property
    def held(self) -> str:
        """The name of the group that a next transfer may use again."""
        return "" if self._group is None else self._group.name

    def begin(self, transfer: WeightTransfer) -> Callable[[Tensor], None]:
        """Tell receivers to come, and return what sends bytes to them; raise `GroupError` where not all come."""
        self._store.set(transfer.offer, "begun")
        if self._group is None or self._group.name != transfer.group:
            self.leave()
            self._group = TransferGroup.gather(torch, transfer, self._store, self._device)
        return self._group.broadcast

    def buffer(self, size: int) -> Tensor:
        """Return bytes for a bucket, on the device that the group sends from."""
        assert self._group is not None
        return cast("Tensor", self._group.buffer(size))

    def leave(self) -> None:
        """End the group, for instance because a transfer failed."""
        group, self._group = self._group, None
        if group is not None:
            group.close()


class TensorStream:
    """Runs through a model's tensors, bucket by bucket, in every process of the trainer alike.

    Gathering is a collective where weights are divided: whatever happens to the transfer, each process gathers every
    tensor, one at a time.
    """

    def __init__(self, outgoing: Sequence[Outgoing], manifest: WeightManifest, bucket_bytes: int) -> None:
        self._outgoing = outgoing
        self._manifest = manifest
        self._bucket_bytes = bucket_bytes

    @property
    def largest(self) -> int:
        """Bytes of the largest bucket."""
        return max((pieces[-1].end for pieces in self._manifest.buckets(self._bucket_bytes)), default=0)

    @torch.no_grad()
    def accompany(self) -> None:
        """Gather what another process sends."""
        for one in self._sent():
            one.gather()

    @torch.no_grad()
    def send(self, buffer: Tensor, send: Callable[[Tensor], None]) -> None:
        """Send every tensor; after a `GroupError` go on gathering, then raise it."""
        failure: GroupError | None = None
        current, flat = -1, torch.empty(0, dtype=torch.uint8)
        for pieces in self._manifest.buckets(self._bucket_bytes):
            for piece in pieces:
                if piece.tensor != current:
                    current, flat = piece.tensor, _bytes(self._outgoing[piece.tensor], buffer.device)
                buffer[piece.offset : piece.end].copy_(flat[piece.start : piece.start + piece.length])
            if failure is None:
                try:
                    send(buffer[: pieces[-1].end])
                except GroupError as error:
                    failure = error
        if failure is not None:
            raise failure

    def _sent(self) -> list[Outgoing]:
        """Return the tensors that have bytes: an empty one is in no bucket."""
        return [one for one in self._outgoing if one.bytes]


def _bytes(one: Outgoing, device: torch.device) -> Tensor:
    return one.gather().to(device, one.dtype).contiguous().view(-1).view(torch.uint8)


def _listen(config: TransferConfig) -> tuple[Any, int]:
    """Return a store that listens on the configured address alone, and its port."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((config.host, config.port))
        listening.listen(1024)
    except OSError as error:
        listening.close()
        raise ConfigError(
            f"the trainer cannot listen on {config.host}:{config.port}: {error.strerror or error}",
            where="trainer.transfer.host and port",
            next_step="give an address of the trainer's machine, and a free port or 0",
        ) from error
    port = int(listening.getsockname()[1])
    timeout = timedelta(seconds=config.seconds)
    number = listening.detach()
    store = TCPStore(config.host, port, None, True, timeout, wait_for_workers=False, master_listen_fd=number)
    return store, port
