"""A safetensors directory, or tensors that a trainer sends: proven whole and fitting before any model is touched."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from prl.types import WeightTransfer, WeightTransferError

from .errors import WeightLoadError

INDEX = "model.safetensors.index.json"
SENT = "weights sent by the trainer"
TOLD = 200  # characters of another program's message

Shapes = Mapping[str, tuple[int, ...]]


def read_index(directory: Path) -> dict[str, str]:
    """Return which file holds each tensor, {} where there is no index; raise `WeightLoadError` for a broken one."""
    path = directory / INDEX
    try:
        if not path.is_file():
            return {}
        weight_map = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        return {str(name): str(file) for name, file in weight_map.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise problem(f"{INDEX} is not a weights index ({str(error)[:TOLD]})", directory) from error


def weight_files(directory: Path, index: Mapping[str, str]) -> list[Path]:
    """Return the files that hold the tensors; raise `WeightLoadError` where there are none, or one is missing."""
    try:
        is_there = directory.is_dir()
    except (OSError, ValueError) as error:
        raise problem(f"the path cannot be read: {str(error)[:TOLD]}", directory) from error
    if not is_there:
        raise problem("there is no such directory", directory)
    names = sorted(set(index.values())) or sorted(path.name for path in directory.glob("*.safetensors"))
    if not names:
        raise problem("it holds no *.safetensors file", directory)
    for name in names:
        if Path(name).name != name or not (directory / name).is_file():
            raise problem(f"{INDEX} names {name!r}, which is not a file there", directory)
    return [directory / name for name in names]


def check_listed(index: Mapping[str, str], found: Collection[str], directory: Path) -> None:
    """Raise `WeightLoadError` where the index lists a tensor that no file holds."""
    if absent := sorted(index.keys() - set(found)):
        raise problem(f"{INDEX} lists {absent[0]!r}, but no file holds it", directory)


def check_shapes(shapes: Shapes, expected: Shapes, where: str, *, optional: Collection[str] = ()) -> None:
    """Raise `WeightLoadError` unless these are the tensors of a model; `optional` ones may be missing."""
    if unknown := sorted(shapes.keys() - expected.keys()):
        raise refused(f"the model has no {_some(unknown)}", where)
    if missing := sorted(expected.keys() - shapes.keys() - set(optional)):
        raise refused(f"it lacks {_some(missing)}", where)
    for name, shape in shapes.items():
        if shape != expected[name]:
            raise refused(f"{name!r} has shape {list(shape)}, the model's is {list(expected[name])}", where)


def check_finite(name: str, tensor: Any, where: str) -> None:
    """Raise `WeightLoadError` where a tensor of torch holds a value that is not finite."""
    # types of one byte have no infinities to look for, and torch has no such look
    if tensor.is_floating_point() and tensor.element_size() > 1 and not bool(tensor.isfinite().all()):
        raise refused(f"{name!r} holds values that are not finite", where)


def problem(what: str, directory: Path | str) -> WeightLoadError:
    """Return the error of a directory that was refused before anything was touched."""
    return refused(what, f"directory {str(directory)!r}")


def refused(what: str, where: str) -> WeightLoadError:
    """Return the error of weights that were refused before anything was touched."""
    return WeightLoadError(
        f"weights not loaded: {what}",
        where=where,
        next_step="publish complete weights of the served model; the previous weights keep serving",
    )


def differ(first: str, second: str, where: str) -> WeightLoadError:
    """Return the error of two tensors that are one in the model: loading both would keep only the last."""
    return refused(f"{first!r} and {second!r} are tied in the model but differ", where)


def not_arrived(transfer: WeightTransfer, reason: object) -> WeightTransferError:
    """Return the error of sent weights that did not come in whole."""
    return WeightTransferError(
        f"weights {transfer.version} did not arrive: {reason}",
        where=f"group of {transfer.world} over {transfer.backend} with {transfer.address}",
        next_step="the previous weights keep serving; load a directory, or send them again. Engines must reach the "
        "trainer under trainer.transfer.host",
    )


def _some(names: list[str]) -> str:
    return ", ".join(map(repr, names[:3])) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
