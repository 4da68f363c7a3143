"""A process group of one sender and its receivers, beside any other group that their processes are in."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

from prl.types import WeightTransfer

SENDER = 0
"""The sender's rank."""
JOIN_SECONDS = 20.0
"""How long sender and receivers wait for each other to come; each does so as soon as it is told of the transfer."""
POLL_SECONDS = 0.002
_SEATS = "seats"


class GroupError(RuntimeError):
    """The group could not be made, or broke; plain text, which the caller puts into its own error."""


class TransferGroup:
    """The group of one `WeightTransfer`, kept for later ones of the same name.

    Made without the default group of `torch.distributed`, which a process may have for other purposes. `torch` is the
    module. Every wait is bounded by the transfer's `seconds`; whatever fails raises `GroupError`, and the group is then
    of no further use.
    """

    def __init__(self, torch: Any, transfer: WeightTransfer, store: Any, rank: int, device: str) -> None:
        self.name = transfer.group
        self._torch = torch
        self._store = store
        self.device = device if transfer.backend == "nccl" else "cpu"
        self._options = torch.distributed.BroadcastOptions()
        self._options.rootRank, self._options.rootTensor = SENDER, 0
        self._options.timeout = timedelta(seconds=transfer.seconds)
        with _torch_errors(f"the group of {transfer.world} processes was not made"):
            self._group = _make(torch.distributed, transfer, store, rank)

    @classmethod
    def join(cls, torch: Any, transfer: WeightTransfer, device: str) -> TransferGroup:
        """Come to the sender as a receiver: take a seat once it begins."""
        host, port = split_address(transfer.address)
        patience = timedelta(seconds=min(JOIN_SECONDS, transfer.seconds))
        with _torch_errors(f"the sender at {transfer.address} cannot be reached"):
            store = torch.distributed.TCPStore(host, port, None, False, patience, wait_for_workers=False)
        _wait_for_sender(store, transfer)
        with _torch_errors(f"the sender at {transfer.address} cannot be reached"):
            rank = int(store.add(f"{transfer.group}/{_SEATS}", 1))
        if rank >= transfer.world:
            raise GroupError(f"all {transfer.world - 1} seats of the group are taken")
        return cls(torch, transfer, store, rank, device)

    @classmethod
    def gather(cls, torch: Any, transfer: WeightTransfer, store: Any, device: str) -> TransferGroup:
        """Be the sender, once all receivers have taken their seats; raise `GroupError` where one does not."""
        until = time.monotonic() + min(JOIN_SECONDS, transfer.seconds)
        wanted = transfer.world - 1
        while (seated := int(store.add(f"{transfer.group}/{_SEATS}", 0))) < wanted:
            if time.monotonic() > until:
                raise GroupError(f"{seated} of {wanted} receivers came")
            time.sleep(POLL_SECONDS)
        return cls(torch, transfer, store, SENDER, device)

    def wait_for_sender(self, transfer: WeightTransfer) -> None:
        """Return once the sender begins this transfer; raise `GroupError` where it does not."""
        _wait_for_sender(self._store, transfer)

    def buffer(self, size: int) -> Any:
        """Return bytes for a bucket, on the device that the group sends from and to."""
        return self._torch.empty(size, dtype=self._torch.uint8, device=self.device)

    def broadcast(self, data: Any) -> None:
        """Send bytes to all, or receive them, in place."""
        with _torch_errors("the transfer broke off"):
            self._group.broadcast([data], self._options).wait(self._options.timeout)

    def close(self) -> None:
        """End the connections, also those that hang."""
        # It may be broken already, which is why it is closed; and not every torch can abort gloo's groups.
        with suppress(RuntimeError, AttributeError):
            self._group.abort()
        self._group = self._store = None


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of "host:port" ("[host]:port" for IPv6)."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def local_address(address: str) -> str:
    """Return this machine's own address on the way to another; the loopback one where there is no way."""
    host, port = split_address(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, port))  # nothing is sent: the system only picks the way
            return str(probe.getsockname()[0])
        except OSError:
            return "::1" if family == socket.AF_INET6 else "127.0.0.1"


def _wait_for_sender(store: Any, transfer: WeightTransfer) -> None:
    patience = timedelta(seconds=min(JOIN_SECONDS, transfer.seconds))
    with _torch_errors(f"the sender at {transfer.address} did not begin"):
        store.wait([transfer.offer], patience)


def _make(dist: Any, transfer: WeightTransfer, store: Any, rank: int) -> Any:
    below = dist.PrefixStore(transfer.group, store)
    timeout = timedelta(seconds=transfer.seconds)
    if transfer.backend == "nccl":
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timeout
        with _raising_timeouts():
            return dist.ProcessGroupNCCL(below, rank, transfer.world, options)
    options = dist.ProcessGroupGloo._Options()
    options._timeout = timeout
    # The interface on the way to the sender: a machine's name may resolve to one that others do not reach.
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=local_address(transfer.address))]
    return dist.ProcessGroupGloo(below, rank, transfer.world, options)


@contextmanager
def _raising_timeouts() -> Iterator[None]:
    """Have a NCCL group that is made now raise when it waits too long; by default it would end the process."""
    name = "TORCH_NCCL_BLOCKING_WAIT"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


@contextmanager
def _torch_errors(what: str) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, OSError) as error:  # torch's own kinds are RuntimeErrors
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise GroupError(f"{what}: {lines[0][:300]}") from error
