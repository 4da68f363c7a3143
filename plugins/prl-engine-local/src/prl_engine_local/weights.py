"""New weights, from a directory or from the trainer: checked and in memory before the model is touched."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch

from .errors import WeightLoadError

INDEX = "model.safetensors.index.json"


def read_weights(model: Any, directory: str) -> dict[str, torch.Tensor]:
    """Return the directory's tensors on CPU, proven to fit `model`; raise `WeightLoadError` otherwise."""
    found = _read_files(Path(directory))
    check_fits(model, {name: tuple(tensor.shape) for name, tensor in found.items()}, f"directory {directory!r}")
    check_values(model, found, f"directory {directory!r}")
    return found


def check_fits(model: Any, shapes: Mapping[str, tuple[int, ...]], where: str) -> None:
    """Raise `WeightLoadError` unless tensors of these names and shapes are all that `model` needs."""
    expected = parameter_names(model, shapes)
    _check_names(expected, shapes, where)
    for name, shape in shapes.items():
        wanted = tuple(expected[name].shape)
        if shape != wanted:
            raise refusal(f"{name!r} has shape {list(shape)}, the model's is {list(wanted)}", where)


def check_values(model: Any, found: Mapping[str, torch.Tensor], where: str) -> None:
    """Raise `WeightLoadError` for values that are not finite, and for two values of one tied tensor."""
    for name, tensor in found.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise refusal(f"{name!r} holds values that are not finite", where)
    _check_tied(parameter_names(model, found), found, where)


def parameter_names(model: Any, given: Collection[str] = ()) -> dict[str, torch.Tensor]:
    """Return every state entry by name; tied names share one storage.

    transformers 5 holds some weights otherwise than checkpoints do, such as the experts of a layer in one tensor. Where
    the `given` names are not the model's own, the entries are those of its checkpoints: views of the model's tensors.
    """
    own: dict[str, torch.Tensor] = dict(model.state_dict())
    if own.keys() >= set(given):
        return own
    saved = _as_saved(model, own)
    storages = {tensor.untyped_storage().data_ptr() for tensor in own.values()}
    is_view = all(tensor.untyped_storage().data_ptr() in storages for tensor in saved.values())
    return saved if is_view else own


def _as_saved(model: Any, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    try:
        from transformers.core_model_loading import revert_weight_conversion
    except ImportError:  # before transformers 5, a model's names were its checkpoints'
        return tensors
    saved: dict[str, torch.Tensor] = revert_weight_conversion(model, tensors)
    return saved


@torch.no_grad()
def apply_weights(model: Any, weights: Mapping[str, torch.Tensor]) -> None:
    """Copy checked weights into the model, in place: tied names follow because they are one tensor."""
    expected = parameter_names(model, weights)
    for name, tensor in weights.items():
        expected[name].copy_(tensor)


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


def _check_names(expected: Mapping[str, torch.Tensor], found: Mapping[str, Any], where: str) -> None:
    if unknown := sorted(found.keys() - expected.keys()):
        raise refusal(f"the model has no {_some(unknown)}", where)
    given = {expected[name].data_ptr() for name in found}
    missing = sorted(name for name, tensor in expected.items() if name not in found and tensor.data_ptr() not in given)
    if missing:
        raise refusal(f"it lacks {_some(missing)}", where)


def _check_tied(expected: Mapping[str, torch.Tensor], found: Mapping[str, torch.Tensor], where: str) -> None:
    """Refuse two different values for one tensor: copying them in turn would keep only the last."""
    first: dict[int, str] = {}
    for name in found:
        twin = first.setdefault(expected[name].data_ptr(), name)
        if twin != name and not torch.equal(found[twin], found[name]):
            raise refusal(f"{twin!r} and {name!r} are tied in the model but differ", where)


def _some(names: list[str]) -> str:
    return ", ".join(map(repr, names[:3])) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def refusal(problem: str, where: str) -> WeightLoadError:
    """Return the error of weights that were refused before the model was touched."""
    return WeightLoadError(
        f"weights not loaded: {problem}",
        where=where,
        next_step="publish complete weights of the served model; the previous weights keep serving",
    )


def _error(problem: str, directory: str) -> WeightLoadError:
    return refusal(problem, f"directory {directory!r}")
