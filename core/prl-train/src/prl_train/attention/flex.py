"""torch's flex attention: one block mask over the packed row, compiled on CUDA. It has no backward on CPU."""

from __future__ import annotations

import functools
from collections.abc import Callable, MutableMapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from torch.utils.weak import WeakTensorKeyDictionary

from prl.contracts import Scoring
from prl.types import ConfigError

from .sinks import add_sinks

_masks: MutableMapping[Tensor, dict[tuple[int, tuple[int, int]], tuple[BlockMask, Tensor]]] = WeakTensorKeyDictionary()


def create() -> Callable[..., Tensor]:
    """Return the kernel, an `AttentionKernel`."""
    return flex


def flex(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    cu_seqlens: Tensor,
    max_seqlen: int,
    causal: bool = True,
    window: tuple[int, int] = (-1, -1),
    softmax_scale: float | None = None,
    sinks: Tensor | None = None,
    softcap: float = 0.0,
) -> Tensor:
    """Attend within each document; q [T, Hq, D], k and v [T, Hkv, D], result [T, Hq, Dv].

    Tokens after `cu_seqlens[-1]` are padding and give zeros. Raises `ConfigError` where a gradient is wanted on CPU.
    """
    if q.device.type == "cpu" and torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
        raise ConfigError(
            "the attention kernel 'flex' cannot train on CPU: torch's flex attention has no backward there",
            where="attention = 'flex'",
            next_step="train on CPU with attention = 'sdpa', or use flex on CUDA",
        )
    scoring = Scoring.of(q.shape[-1], causal=causal, window=window, softmax_scale=softmax_scale)
    mask, real = _mask(cu_seqlens, q.shape[0], scoring.sides)
    batched = (x.transpose(0, 1)[None] for x in (q, k, v))
    out, aux = _attention(q.device.type)(
        *batched,
        score_mod=_cap(softcap) if softcap else None,
        block_mask=mask,
        scale=scoring.scale,
        enable_gqa=q.shape[1] != k.shape[1],
        **_with_lse(),
    )
    attended = out[0].transpose(0, 1)
    attended, _ = add_sinks(attended, getattr(aux, "lse", aux)[0], sinks)
    return torch.where(real[:, None, None], attended, torch.zeros_like(attended))


def _mask(cu_seqlens: Tensor, length: int, sides: tuple[int, int]) -> tuple[BlockMask, Tensor]:
    """Return the row's block mask, and bool [T] where a token is of a document; made once a micro-batch and window."""
    made = _masks.setdefault(cu_seqlens, {})
    key = (length, sides)
    if key not in made:
        place = torch.arange(length, device=cu_seqlens.device, dtype=cu_seqlens.dtype)
        document = torch.searchsorted(cu_seqlens, place, right=True)
        see = _sees(document, *sides)
        made[key] = (
            create_block_mask(see, None, None, length, length, device=str(cu_seqlens.device)),
            document < cu_seqlens.shape[0],
        )
    return made[key]


def _sees(document: Tensor, left: int, right: int) -> Callable[..., Tensor]:
    def see(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        seen = document[query] == document[key]
        if left >= 0:
            seen = seen & (key >= query - left)
        if right >= 0:
            seen = seen & (key <= query + right)
        return seen

    return see


def _cap(softcap: float) -> Callable[..., Tensor]:
    def cap(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return softcap * torch.tanh(score / softcap)

    return cap


@functools.cache
def _attention(device: str) -> Any:
    """Return flex attention as it runs on a device: compiled, or in plain torch where compiling takes a minute."""
    return flex_attention if device == "cpu" else torch.compile(flex_attention, dynamic=True)


@functools.cache
def _with_lse() -> dict[str, Any]:
    """Return the keyword that asks for the log-sum-exp; newer torch gives it among other things."""
    try:
        from torch.nn.attention.flex_attention import AuxRequest
    except ImportError:
        return {"return_lse": True}
    return {"return_aux": AuxRequest(lse=True)}
