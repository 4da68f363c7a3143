"""Bind a kernel plugin to the attention layers of a transformers model.

The kernel and the row's boundaries travel as one keyword of `model(...)` down to every layer; no module-global state.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from prl.contracts import AttentionKernel
from prl.types import ConfigError
from prl_train.errors import TrainingError

IMPLEMENTATION = "prl_packed"
"""The name under which models find `attend`, as their `attn_implementation`."""


@dataclass(frozen=True, slots=True)
class BoundKernel:
    """A kernel and what its record says it can do."""

    name: str
    kernel: AttentionKernel
    features: frozenset[str]

    def require(self, feature: str, why: str) -> None:
        """Raise `ConfigError` where the kernel lacks a feature that the model needs."""
        if feature not in self.features:
            raise ConfigError(
                f"the attention kernel {self.name!r} has no {feature!r}, and {why}",
                where=f"attention = {self.name!r}",
                next_step="choose another kernel: `prl plugins list --kind attention_kernel` shows their features",
            )


@dataclass(frozen=True, slots=True)
class PackedCall:
    """One forward pass: the kernel and where the documents lie in the row."""

    bound: BoundKernel
    cu_seqlens: Tensor
    max_seqlen: int


def resolve_kernel(name: str, *, device: str, dtype: str) -> BoundKernel:
    """Find a kernel by name in the registry; raise `ConfigError` where it does not serve the device or dtype."""
    from prl.plugin import get_registry, load_target

    record: Any = get_registry().find("attention_kernel", name)
    for value, offered, what in ((device, record.devices, "device"), (dtype, record.dtypes, "dtype")):
        if offered and value not in offered:
            raise ConfigError(
                f"the attention kernel {name!r} does not run on {what} {value!r} (it offers {', '.join(offered)})",
                where=f"attention = {name!r}",
                next_step="choose another kernel: `prl plugins list --kind attention_kernel`",
            )
    kernel: Any = load_target(record)
    return bind(name, kernel(), record.features)


def bind(name: str, kernel: AttentionKernel, features: Collection[str]) -> BoundKernel:
    """Pair a kernel with its features."""
    return BoundKernel(name, kernel, frozenset(features))


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
    if softcap is not None or dropout > 0:
        raise ConfigError(
            "packed attention kernels have neither a soft cap on the logits nor dropout",
            where=type(module).__name__,
            next_step="set attention_dropout to 0 in the model's config.json, or train another model",
        )
    bound = packed.bound
    window = (-1, -1)
    if sliding_window is not None:
        bound.require("window", "the model has sliding-window layers")
        window = (sliding_window - 1, 0)  # transformers counts the token itself, the contract does not
    if s_aux is not None:
        bound.require("sinks", "the model has attention sinks")
    if query.shape[1] != key.shape[1]:
        bound.require("gqa", "the model shares key heads between query heads")
    attended = bound.kernel(
        *(x[0].transpose(0, 1) for x in (query, key, value)),
        cu_seqlens=packed.cu_seqlens,
        max_seqlen=packed.max_seqlen,
        causal=getattr(module, "is_causal", True),
        window=window,
        softmax_scale=scaling,
        sinks=s_aux,
    )
    return attended[None], None


def _no_mask(*_: Any, **__: Any) -> None:
    """Build no mask: the kernel knows the documents."""


AttentionInterface.register(IMPLEMENTATION, attend)
AttentionMaskInterface.register(IMPLEMENTATION, _no_mask)
