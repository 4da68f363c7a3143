"""The processes that train one model together: groups, small exchanges, and how the failure of one ends all.

Ranks are divided into data groups and context groups: the `context` processes of a context group share each row, and
every context group has rows of its own. `World()` is one process alone, whose exchanges cost nothing.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.rendezvous import rendezvous

from prl.types import ConfigError, PrlError
from prl_train.errors import WorkerError

from .place import Place, find_place

T = TypeVar("T")

STORE_PREFIX = "prl"
FAILURE = "failure"
_PATIENCE = timedelta(seconds=600)
_ASK = timedelta(seconds=5)


class World:
    """This process among all. Exchanges are collective: every process must come to them in the same order."""

    def __init__(self, place: Place | None = None, *, replicas: int = 1, context: int = 1, device: str = "cpu") -> None:
        """Divide the processes; `torch.distributed` must be up where there is more than one.

        Raises `ConfigError` where they cannot be divided into `replicas` and `context` groups.
        """
        self.place = place or Place()
        self.rank, self.size = self.place.rank, self.place.size
        _check_division(self.size, replicas, context)
        self.context_size = context
        self.data_size = self.size // context
        self.data_rank = self.rank // context
        self.store: Store | None = None
        self.group: dist.ProcessGroup | None = None
        self._mesh: DeviceMesh | None = None
        self._roles: DeviceMesh | None = None
        if self.size > 1:
            kind = torch.device(device).type
            self._mesh = _weight_mesh(kind, self.size, replicas)
            self._roles = init_device_mesh(kind, (self.data_size, context), mesh_dim_names=("data", "context"))

    @property
    def is_main(self) -> bool:
        """Whether this process writes what one process writes."""
        return self.rank == 0

    @property
    def mesh(self) -> DeviceMesh:
        """The mesh over which weights are divided: ("shard",) or ("replicate", "shard")."""
        if self._mesh is None:
            raise WorkerError(
                "one process alone has no mesh", where="World.mesh", next_step="shard a model only where size > 1"
            )
        return self._mesh

    @property
    def context_group(self) -> dist.ProcessGroup | None:
        """The processes that share this process's rows; None where it has them alone."""
        if self._roles is None or self.context_size == 1:
            return None
        return self._roles.get_group("context")

    def beside(self) -> World:
        """Return the same processes with a line of their own, for exchanges in a thread beside the training."""
        other = copy.copy(self)
        if self.size > 1:
            other.group = dist.new_group(backend="gloo")
        return other

    def device(self, name: str) -> torch.device:
        """Return this process's own device of a kind: "cuda" becomes the one of its local rank."""
        device = torch.device(name)
        if self.size == 1 or device.type == "cpu":
            return device
        return torch.device(device.type, self.place.local_rank)

    def add_up(self, values: Sequence[float]) -> list[float]:
        """Return each value's sum over the data groups; processes that share rows count once."""
        return self._reduced(values, dist.ReduceOp.SUM)

    def largest(self, values: Sequence[float]) -> list[float]:
        """Return each value's maximum over the data groups."""
        return self._reduced(values, dist.ReduceOp.MAX)

    def _reduced(self, values: Sequence[float], operation: Any) -> list[float]:
        if self._roles is None:
            return list(values)
        # On the CPU, whatever the model's device: these are a few numbers, and float64 must stay exact.
        tensor = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(tensor, op=operation, group=self._roles.get_group("data"))
        return [float(value) for value in tensor.tolist()]

    def from_main(self, value: T) -> T:
        """Return the main process's value in every process."""
        if self.size == 1:
            return value
        box: list[Any] = [value]
        dist.broadcast_object_list(box, src=0, group=self.group)
        told: T = box[0]
        return told

    def collect(self, value: T) -> list[T]:
        """Return every process's value, in order of rank, in every process."""
        if self.size == 1:
            return [value]
        box: list[Any] = [None] * self.size
        dist.all_gather_object(box, value, group=self.group)
        return box

    def check_same(self, value: Any, what: str) -> None:
        """Raise `WorkerError` in every process unless all hold the same value."""
        held = self.collect(value)
        if any(other != held[0] for other in held):
            raise WorkerError(
                f"the processes do not agree on {what}: {held}",
                where=f"rank {self.rank} of {self.size}",
                next_step="give every process the same configuration and the same run.directory on a shared disk",
            )

    def wait(self) -> None:
        """Return when every process has come here."""
        if self.size > 1:
            dist.barrier(group=self.group)

    @contextmanager
    def main_first(self) -> Iterator[None]:
        """Let the main process run the body before the others do, so that they find what it made."""
        if not self.is_main:
            self.wait()
        yield
        if self.is_main:
            self.wait()

    # -- failures

    def tell(self, error: BaseException) -> None:
        """Leave word of this process's failure, unless another process failed first."""
        if self.store is None:
            return
        what, next_step = f"{type(error).__name__}: {error}".strip(), ""
        if isinstance(error, PrlError):
            what, next_step = error.what, error.next_step
        self.store.compare_set(FAILURE, "", json.dumps({"rank": self.rank, "what": what, "next_step": next_step}))

    def told(self) -> dict[str, Any] | None:
        """Return the first failure that a process left word of: its `rank`, `what` and `next_step`."""
        if self.store is None:
            return None
        try:
            if not self.store.check([FAILURE]):
                return None
            told: dict[str, Any] = json.loads(self.store.get(FAILURE))
        except dist.DistError:  # the store ended with the process that held it
            return None
        return told


def _check_division(size: int, replicas: int, context: int) -> None:
    if size % (replicas * context) == 0:
        return
    raise ConfigError(
        f"{size} trainer processes cannot be divided into {replicas} replicas with context groups of {context}",
        where="[trainer.parallel]",
        next_step="make the number of processes a multiple of replicas x context",
    )


def _weight_mesh(kind: str, size: int, replicas: int) -> DeviceMesh:
    if replicas == 1:
        return init_device_mesh(kind, (size,), mesh_dim_names=("shard",))
    return init_device_mesh(kind, (replicas, size // replicas), mesh_dim_names=("replicate", "shard"))


_ALONE = World()
_current = _ALONE


def current_world() -> World:
    """Return the world that `joined_world` opened, or that of one process alone."""
    return _current


@contextmanager
def joined_world(*, device: str = "cpu", replicas: int = 1, context: int = 1, patience: float = 0.0) -> Iterator[World]:
    """Join the processes that the launcher started; alone where there is no launcher.

    `patience` are the seconds that one process may keep the others waiting, beyond ten minutes. The failure of one
    process becomes a `WorkerError` in those that waited for it. Raises `ConfigError` where the processes cannot be
    divided as asked.
    """
    global _current
    place = find_place()
    if place.size == 1:
        _check_division(1, replicas, context)
        yield _ALONE
        return
    store = _join(place, device, _PATIENCE + timedelta(seconds=patience))
    try:
        world = World(place, replicas=replicas, context=context, device=device)
        world.store = store
        _current = world
        with _failing_together(world):
            yield world
    finally:
        _current = _ALONE
        dist.destroy_process_group()


def _join(place: Place, device: str, timeout: timedelta) -> Store:
    on_gpu = torch.device(device).type == "cuda"
    if on_gpu:
        torch.cuda.set_device(place.local_rank)
    store, rank, size = next(rendezvous("env://", place.rank, place.size, timeout=timeout))
    backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)
    told: Store = PrefixStore(STORE_PREFIX, store)
    told.set_timeout(_ASK)
    return told


@contextmanager
def _failing_together(world: World) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        # A peer tells before it closes its connections, so word of the first failure is there when they break.
        first = world.told()
        if first is not None and first["rank"] != world.rank and not isinstance(error, PrlError):
            raise WorkerError(
                f"trainer process {first['rank']} failed: {first['what']}",
                where=f"rank {world.rank} of {world.size}",
                next_step=first["next_step"] or "repair what it says, then start the run again with --resume",
            ) from error
        world.tell(error)
        raise
