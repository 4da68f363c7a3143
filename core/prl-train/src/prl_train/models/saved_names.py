"""Checkpoint names of a model's tensors.

transformers 5 holds some weights otherwise than their checkpoints do: the experts of a layer are one tensor in memory
and many in a file. What is published must have the file's names, which is what every other program reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor


def as_saved(model: Any, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors under their checkpoint names, divided as in a checkpoint; before transformers 5, as they are."""
    try:
        from transformers.core_model_loading import revert_weight_conversion
    except ImportError:
        return dict(tensors)
    saved: dict[str, Tensor] = revert_weight_conversion(_plain_model(model), dict(tensors))
    return saved


def saved_in_groups(model: Any, tensors: Mapping[str, Tensor]) -> list[tuple[list[str], dict[str, Tensor]]]:
    """Return which tensors of the model become which of a checkpoint: (names of the model, checkpoint's tensors).

    Give meta tensors: only shapes are looked at. Each group is converted on its own, so that no more than one has to be
    in memory; where a checkpoint's tensor is made of several, all of them are one group.
    """
    apart = [([name], as_saved(model, {name: tensor})) for name, tensor in tensors.items()]
    together = as_saved(model, tensors)
    if _shapes([saved for _, saved in apart]) == _shapes([together]):
        return apart
    return [(list(tensors), together)]


def _shapes(groups: Sequence[Mapping[str, Tensor]]) -> list[tuple[str, tuple[int, ...]]]:
    return sorted((name, tuple(tensor.shape)) for group in groups for name, tensor in group.items())


def _plain_model(model: Any) -> Any:
    """Return the transformers model below adapters."""
    base = getattr(model, "get_base_model", None)
    return model if base is None else base()
