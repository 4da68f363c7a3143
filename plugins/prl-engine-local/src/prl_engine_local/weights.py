"""New weights, from a directory or from the trainer: checked and in memory before the model is touched."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch

from prl.serving.checkpoints import (
    check_finite,
    check_listed,
    check_shapes,
    differ,
    problem,
    read_index,
    weight_files,
)


def read_weights(model: Any, directory: str) -> dict[str, torch.Tensor]:
    """Return the directory's tensors on CPU, proven to fit `model`; raise `WeightLoadError` otherwise."""
    found = _read_files(Path(directory))
    check_fits(model, {name: tuple(tensor.shape) for name, tensor in found.items()}, f"directory {directory!r}")
    check_values(model, found, f"directory {directory!r}")
    return found


def check_fits(model: Any, shapes: Mapping[str, tuple[int, ...]], where: str) -> None:
    """Raise `WeightLoadError` unless tensors of these names and shapes are all that `model` needs."""
    expected = parameter_names(model, shapes)
    given = {expected[name].data_ptr() for name in shapes.keys() & expected.keys()}
    tied = [name for name, tensor in expected.items() if tensor.data_ptr() in given]
    check_shapes(shapes, {name: tuple(tensor.shape) for name, tensor in expected.items()}, where, optional=tied)


def check_values(model: Any, found: Mapping[str, torch.Tensor], where: str) -> None:
    """Raise `WeightLoadError` for values that are not finite, and for two values of one tied tensor."""
    for name, tensor in found.items():
        check_finite(name, tensor, where)
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
    index = read_index(directory)
    for file in weight_files(directory, index):
        try:
            tensors = load_file(file)
        except (SafetensorError, OSError) as error:
            raise problem(f"{file.name} cannot be read: {error}", directory) from error
        if twice := sorted(found.keys() & tensors.keys()):
            raise problem(f"{twice[0]!r} is in two files", directory)
        found |= tensors
    check_listed(index, found, directory)
    return found


def _check_tied(expected: Mapping[str, torch.Tensor], found: Mapping[str, torch.Tensor], where: str) -> None:
    """Refuse two different values for one tensor: copying them in turn would keep only the last."""
    first: dict[int, str] = {}
    for name in found:
        twin = first.setdefault(expected[name].data_ptr(), name)
        if twin != name and not torch.equal(found[twin], found[name]):
            raise differ(twin, name, where)
