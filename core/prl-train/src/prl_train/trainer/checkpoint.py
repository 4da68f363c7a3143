"""Checkpoints in torch's distributed format: each process writes its part, any number of processes reads it back."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.staging import BlockingAsyncStager
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from prl_train.distributed.world import World
from prl_train.errors import CheckpointError
from prl_train.storage import fingerprint, is_sealed, numbered, read_sealed, remove_directory, write_sealed

CHECKPOINT_MARKER = "checkpoint.json"
_STATE = "state.json"
_TENSORS = "tensors"
_PREFIX = "step_"
FORMAT = 2
_OPTIONS = StateDictOptions(ignore_frozen_params=True)


class CheckpointWriter:
    """Writes checkpoints, one at a time; in a thread where `in_background` is set and the caller says what follows."""

    def __init__(self, world: World, *, in_background: bool = False) -> None:
        self._world = world
        self._beside = world.beside() if in_background else world
        self._thread = ThreadPoolExecutor(1, "checkpoint") if in_background else None
        self._pending: Future[None] | None = None

    def write(
        self,
        directory: Path,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        state: dict[str, Any],
        then: Callable[[], None] | None = None,
    ) -> None:
        """Write what a later `read_checkpoint` needs; call `then` in the main process once it is whole.

        Every process must call it. `state` is JSON data. Raises the error of an earlier one that failed in the
        background.
        """
        self.finish()
        text = json.dumps(state)  # before anything is written: what is not JSON must not leave half a checkpoint
        tensors = _state_of(model, optimizer, self._world)
        values = {"format": FORMAT, "step": state.get("step"), "processes": self._world.size}
        if self._thread is None or then is None:
            _write(directory, tensors, text, values, self._world, then)
            return
        copied = BlockingAsyncStager().stage(tensors)  # the weights go on changing meanwhile
        self._pending = self._thread.submit(_write, directory, copied, text, values, self._beside, then)

    def finish(self) -> None:
        """Wait for the checkpoint that is being written, if any; raise what made it fail."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()


def _write(
    directory: Path,
    tensors: dict[str, Any],
    text: str,
    values: dict[str, Any],
    world: World,
    then: Callable[[], None] | None,
) -> None:
    def fill_all(work: Path) -> dict[str, dict[str, Any]]:
        parts = world.from_main(str(work))
        known = _write_part(Path(parts), tensors, world)
        (work / _STATE).write_text(text, encoding="utf-8")
        return known

    if world.is_main:
        write_sealed(directory, CHECKPOINT_MARKER, values, fill_all)
        if then is not None:
            then()
    else:
        _write_part(Path(world.from_main("")), tensors, world)
    world.wait()


def _write_part(work: Path, tensors: dict[str, Any], world: World) -> dict[str, dict[str, Any]]:
    """Write this process's tensors; return the fingerprints of all processes' files."""
    if world.size == 1:
        with _alone():
            save(tensors, checkpoint_id=work / _TENSORS, no_dist=True)
        return {}
    save(tensors, checkpoint_id=work / _TENSORS, process_group=world.group)
    mine = sorted((work / _TENSORS).glob(f"__{world.rank}_*"))
    known = world.collect({f"{_TENSORS}/{path.name}": fingerprint(path) for path in mine})
    return {name: value for part in known for name, value in part.items()}


def read_checkpoint(
    directory: Path, model: nn.Module, optimizer: torch.optim.Optimizer, world: World | None = None
) -> dict[str, Any]:
    """Load a checkpoint into model, optimizer and torch's random state; return its JSON state.

    It may come from another number of processes. A process that had no part in it keeps its random state.
    """
    world = world or World()
    marker = _read_marker(directory, world)
    if marker.get("format") != FORMAT:
        raise CheckpointError(
            f"the checkpoint has format {marker.get('format')}, this version reads {FORMAT}",
            where=str(directory),
            next_step="use the version of prl-train that wrote it",
        )
    tensors = _state_of(model, optimizer, world)
    if world.rank >= int(marker["processes"]):
        del tensors["random"]
    _check_shapes(directory, tensors["model"])
    with _alone():
        load(tensors, checkpoint_id=directory / _TENSORS, no_dist=world.size == 1)
    options = StateDictOptions(ignore_frozen_params=True, strict=False)
    set_state_dict(
        model, optimizer, model_state_dict=tensors["model"], optim_state_dict=tensors["optimizer"], options=options
    )
    if "random" in tensors:
        _set_random_state(tensors["random"][str(world.rank)])
    state: dict[str, Any] = json.loads((directory / _STATE).read_text(encoding="utf-8"))
    return state


def _read_marker(directory: Path, world: World) -> dict[str, Any]:
    """Verify the directory, each process a part of it; raise in all what one finds."""
    marker: dict[str, Any] = {}
    problem: tuple[str, str, str] | None = None
    try:
        marker = read_sealed(directory, CHECKPOINT_MARKER, verify=True, part=(world.rank, world.size))
    except CheckpointError as error:
        problem = (error.what, error.where, error.next_step)
    found = next((one for one in world.collect(problem) if one is not None), None)
    if found is not None:
        raise CheckpointError(found[0], where=found[1], next_step=found[2])
    return marker


def _state_of(model: nn.Module, optimizer: torch.optim.Optimizer, world: World) -> dict[str, Any]:
    """Return what a checkpoint holds: trained weights, moments, and each process's random state."""
    model_state, optimizer_state = get_state_dict(model, optimizer, options=_OPTIONS)
    for name, parameter in model.named_parameters(remove_duplicate=False):  # torch forgets second names
        if not parameter.requires_grad:
            model_state.pop(name, None)
    random = {str(world.rank): _random_state()}
    return {"model": model_state, "optimizer": optimizer_state, "random": random}


def _check_shapes(directory: Path, model_state: dict[str, Any]) -> None:
    """Compare names and shapes first: a load into the wrong model would fail half-way, with some weights changed."""
    saved = FileSystemReader(directory / _TENSORS).read_metadata().state_dict_metadata
    for name, tensor in model_state.items():
        stored = saved.get(f"model.{name}")
        size = tuple(getattr(stored, "size", ()))
        if stored is None or size != tuple(tensor.shape):
            raise CheckpointError(
                f"the checkpoint's {name!r} has shape {size or 'none'}, the model's {tuple(tensor.shape)}",
                where=str(directory),
                next_step="resume with the model that the checkpoint was made from",
            )


@contextmanager
def _alone() -> Iterator[None]:
    """Keep torch from warning that one process is one process."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def _random_state() -> dict[str, torch.Tensor]:
    state = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def _set_random_state(state: dict[str, torch.Tensor]) -> None:
    torch.set_rng_state(state["cpu"])
    if "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"])


def latest_checkpoint(parent: str | Path) -> Path | None:
    """Return the newest whole checkpoint below `parent` (folders `step_N`), or None."""
    found = reversed(numbered(parent, _PREFIX))
    return next((path for _, path in found if is_sealed(path, CHECKPOINT_MARKER)), None)


def checkpoint_path(parent: str | Path, step: int) -> Path:
    """Return where the checkpoint of a step lies."""
    return Path(parent) / f"{_PREFIX}{step:06d}"


def remove_old_checkpoints(parent: str | Path, keep: int | None, newest: Path | None = None) -> list[Path]:
    """Remove all but the last `keep` checkpoints up to `newest` (None: all there are); return what was removed.

    A run that was killed between writing a checkpoint and pointing to it goes on from an older one: the one that it
    writes next is `newest`, whatever lies beyond. A `keep` of None keeps all.
    """
    last = None if newest is None else int(newest.name.removeprefix(_PREFIX))
    found = [path for step, path in numbered(parent, _PREFIX) if last is None or step <= last]
    old = [] if keep is None else found[:-keep]
    for path in old:
        remove_directory(path)
    return old
