"""Bind a kernel plugin to the attention layers of a transformers model.

The kernel and the row's boundaries travel as one keyword of `model(...)` down to every layer; no module-global state.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from prl.types import ConfigError
from prl_train.errors import TrainingError

from .bound import BoundKernel, PackedCall, bind
from .choose import resolve_kernel

__all__ = ["IMPLEMENTATION", "BoundKernel", "PackedCall", "attend", "bind", "resolve_kernel"]

IMPLEMENTATION = "prl_packed"
"""The name under which models find `attend`, as their `attn_implementation`."""


def attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    is_causal: bool | None = None,
    packed: PackedCall | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Answer a layer's attention call; query [1, Hq, T, D], key and value [1, Hkv, T, D]; returns [1, T, Hq, D]."""
    if packed is None or query.shape[0] != 1:
        raise TrainingError(
            "packed attention was called without the row's document boundaries",
            where=type(module).__name__,
            next_step="call the model through prl_train.trainer.forward, one row at a time",
        )
    if dropout > 0:
        raise ConfigError(
            "packed attention kernels have no dropout",
            where=type(module).__name__,
            next_step="set attention_dropout to 0 in the model's config.json",
        )
    if attention_mask is not None:
        raise ConfigError(
            "the model brings an attention mask of its own, which packed attention kernels do not take",
            where=type(module).__name__,
            next_step="train a model whose attention is causal, in full or within a sliding window",
        )
    causal = _is_causal(module, is_causal)
    scale = None if scaling is None or math.isclose(scaling, query.shape[-1] ** -0.5) else scaling
    _check_features(packed.bound, query, key, causal, sliding_window, s_aux, softcap, scale)
    window = (-1, -1)
    if sliding_window is not None:
        # transformers counts the token itself, the contract does not
        window = (sliding_window - 1, 0 if causal else sliding_window - 1)
    attended = packed.attend(
        *(x[0].transpose(0, 1) for x in _in_one_dtype(query, key, value)),
        causal=causal,
        window=window,
        softmax_scale=scale,
        sinks=s_aux,
        softcap=softcap,
    )
    return attended[None], None


def _is_causal(module: torch.nn.Module, given: bool | None) -> bool:
    """Return the call's own word, as transformers' kernels do, or the layer's."""
    return bool(getattr(module, "is_causal", True)) if given is None else given


def _check_features(
    bound: BoundKernel,
    query: Tensor,
    key: Tensor,
    causal: bool,
    sliding_window: int | None,
    sinks: Tensor | None,
    softcap: float | None,
    scale: float | None,
) -> None:
    """Raise `ConfigError` naming what the layer needs and the kernel lacks."""
    needed = (
        ("non_causal", not causal, "the model has layers that look ahead"),
        ("window", sliding_window is not None, "the model has sliding-window layers"),
        ("sinks", sinks is not None, "the model has attention sinks"),
        ("softcap", bool(softcap), "the model caps its attention scores"),
        ("softmax_scale", scale is not None, "the model scales its attention scores in its own way"),
        ("gqa", query.shape[1] != key.shape[1], "the model shares key heads between query heads"),
    )
    for feature, is_needed, why in needed:
        if is_needed:
            bound.require(feature, why)


def _in_one_dtype(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
    """Return the three in the dtype of autocast, which does not reach kernels, or of the query."""
    kind = query.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else query.dtype
    return tuple(x.to(dtype) for x in (query, key, value))


def _no_mask(*_: Any, **__: Any) -> None:
    """Build no mask: the kernel knows the documents."""


AttentionInterface.register(IMPLEMENTATION, attend)
AttentionMaskInterface.register(IMPLEMENTATION, _no_mask)
