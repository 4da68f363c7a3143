"""Reading a published weights directory: everything is checked and in memory before the model is touched."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from .errors import WeightLoadError

INDEX = "model.safetensors.index.json"


def read_weights(model: Any, directory: str) -> dict[str, torch.Tensor]:
    """Return the directory's tensors on CPU, proven to fit `model`; raise `WeightLoadError` otherwise."""
    expected = parameter_names(model)
    found = _read_files(Path(directory))
    _check_names(expected, found, directory)
    for name, tensor in found.items():
        shape = tuple(expected[name].shape)
        if tuple(tensor.shape) != shape:
            raise _error(f"{name!r} has shape {list(tensor.shape)}, the model's is {list(shape)}", directory)
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise _error(f"{name!r} holds values that are not finite", directory)
    _check_tied(expected, found, directory)
    return found


def parameter_names(model: Any) -> dict[str, torch.Tensor]:
    """Return every state entry by name; tied names share one storage."""
    return dict(model.state_dict(keep_vars=True))


@torch.no_grad()
def apply_weights(model: Any, weights: Mapping[str, torch.Tensor]) -> None:
    """Copy checked weights into the model, in place: tied names follow because they are one tensor."""
    expected = parameter_names(model)
    for name, tensor in weights.items():
        expected[name].data.copy_(tensor)


def _read_files(directory: Path) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    found: dict[str, torch.Tensor] = {}
    index = _index(directory)
    for file in _files(directory, index):
        try:
            tensors = load_file(file)
        except (SafetensorError, OSError) as error:
            raise _error(f"{file.name} cannot be read: {error}", str(directory)) from error
        if twice := sorted(found.keys() & tensors.keys()):
            raise _error(f"{twice[0]!r} is in two files", str(directory))
        found |= tensors
    if absent := sorted(index.keys() - found.keys()):
        raise _error(f"{INDEX} lists {absent[0]!r}, but no file holds it", str(directory))
    return found


def _index(directory: Path) -> dict[str, str]:
    path = directory / INDEX
    try:
        if not path.is_file():
            return {}
        weight_map = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        return {str(name): str(file) for name, file in weight_map.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _error(f"{INDEX} is not a weights index ({str(error)[:200]})", str(directory)) from error


def _files(directory: Path, index: Mapping[str, str]) -> list[Path]:
    if not directory.is_dir():
        raise _error("there is no such directory", str(directory))
    names = sorted(set(index.values())) or sorted(path.name for path in directory.glob("*.safetensors"))
    if not names:
        raise _error("it holds no *.safetensors file", str(directory))
    for name in names:
        if Path(name).name != name or not (directory / name).is_file():
            raise _error(f"{INDEX} names {name!r}, which is not a file there", str(directory))
    return [directory / name for name in names]


def _check_names(expected: Mapping[str, torch.Tensor], found: Mapping[str, torch.Tensor], directory: str) -> None:
    if unknown := sorted(found.keys() - expected.keys()):
        raise _error(f"the model has no {_some(unknown)}", directory)
    given = {expected[name].data_ptr() for name in found}
    missing = sorted(name for name, tensor in expected.items() if name not in found and tensor.data_ptr() not in given)
    if missing:
        raise _error(f"it lacks {_some(missing)}", directory)


def _check_tied(expected: Mapping[str, torch.Tensor], found: Mapping[str, torch.Tensor], directory: str) -> None:
    """Refuse two different values for one tensor: copying them in turn would keep only the last."""
    first: dict[int, str] = {}
    for name in found:
        twin = first.setdefault(expected[name].data_ptr(), name)
        if twin != name and not torch.equal(found[twin], found[name]):
            raise _error(f"{twin!r} and {name!r} are tied in the model but differ", directory)


def _some(names: list[str]) -> str:
    return ", ".join(map(repr, names[:3])) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _error(problem: str, directory: str) -> WeightLoadError:
    return WeightLoadError(
        f"weights not loaded: {problem}",
        where=f"directory {directory!r}",
        next_step="publish a complete safetensors directory of the served model; the previous weights keep serving",
    )
