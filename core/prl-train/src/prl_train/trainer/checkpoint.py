"""Checkpoints in torch's distributed format: names and tensors, to be read back by any number of processes."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from prl_train.errors import CheckpointError
from prl_train.storage import is_sealed, read_sealed, write_sealed

CHECKPOINT_MARKER = "checkpoint.json"
_STATE = "state.json"
_TENSORS = "tensors"
_PREFIX = "step_"
FORMAT = 1


def write_checkpoint(
    directory: Path, model: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any]
) -> Path:
    """Write everything a later `read_checkpoint` needs to go on exactly; `state` is JSON data."""
    text = json.dumps(state)  # before anything is written: a value that is not JSON must not leave half a checkpoint
    model_state, optimizer_state = get_state_dict(model, optimizer)
    tensors = {"model": model_state, "optimizer": optimizer_state, "random": _random_state()}

    def fill(work: Path) -> None:
        with _alone():
            save(tensors, checkpoint_id=work / _TENSORS, no_dist=True)
        (work / _STATE).write_text(text, encoding="utf-8")

    return write_sealed(directory, CHECKPOINT_MARKER, {"format": FORMAT, "step": state.get("step")}, fill)


def read_checkpoint(directory: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Load a checkpoint into model, optimizer and torch's random state; return its JSON state."""
    marker = read_sealed(directory, CHECKPOINT_MARKER, verify=True)
    if marker.get("format") != FORMAT:
        raise CheckpointError(
            f"the checkpoint has format {marker.get('format')}, this version reads {FORMAT}",
            where=str(directory),
            next_step="use the version of prl-train that wrote it",
        )
    model_state, optimizer_state = get_state_dict(model, optimizer)
    _check_shapes(directory, model_state)
    tensors: dict[str, Any] = {"model": model_state, "optimizer": optimizer_state, "random": _random_state()}
    with _alone():
        load(tensors, checkpoint_id=directory / _TENSORS, no_dist=True)
    set_state_dict(model, optimizer, model_state_dict=tensors["model"], optim_state_dict=tensors["optimizer"])
    _set_random_state(tensors["random"])
    state: dict[str, Any] = json.loads((directory / _STATE).read_text(encoding="utf-8"))
    return state


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
        state |= {f"cuda_{index}": value for index, value in enumerate(torch.cuda.get_rng_state_all())}
    return state


def _set_random_state(state: dict[str, torch.Tensor]) -> None:
    torch.set_rng_state(state["cpu"])
    for index in range(len(state) - 1):
        torch.cuda.set_rng_state(state[f"cuda_{index}"], index)


def latest_checkpoint(parent: str | Path) -> Path | None:
    """Return the newest whole checkpoint below `parent` (folders `step_N`), or None."""
    whole = (
        path for path in sorted(Path(parent).glob(f"{_PREFIX}*"), reverse=True) if is_sealed(path, CHECKPOINT_MARKER)
    )
    return next(whole, None)


def checkpoint_path(parent: str | Path, step: int) -> Path:
    """Return where the checkpoint of a step lies."""
    return Path(parent) / f"{_PREFIX}{step:06d}"


def remove_old_checkpoints(parent: str | Path, keep: int | None) -> list[Path]:
    """Remove all but the newest `keep` checkpoints (None keeps all); return what was removed."""
    old = [] if keep is None else sorted(Path(parent).glob(f"{_PREFIX}*"))[:-keep]
    for path in old:
        shutil.rmtree(path)
    return old
