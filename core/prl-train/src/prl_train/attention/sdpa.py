"""Packed attention on torch's scaled dot product: per document, never a mask over the whole row.

Documents of similar length are padded to one batch. Under a causal mask a document's tokens never see the padding after
them, so no mask is needed and the result is that of each document alone.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.weak import WeakTensorKeyDictionary

from prl.types import ConfigError

_WASTE = 1.3
"""A batch of documents may have this many times the tokens of its documents: calls cost more than a little padding."""


@dataclass(frozen=True, slots=True)
class _Group:
    """Documents attended in one call; `rows` [N * length] are row numbers, padding repeats the document's start."""

    rows: Tensor
    documents: int
    length: int
    real: Tensor | None


_plans: MutableMapping[Tensor, dict[bool, list[_Group]]] = WeakTensorKeyDictionary()


def create() -> Callable[..., Tensor]:
    """Return the kernel, an `AttentionKernel`."""
    return sdpa


def sdpa(
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
) -> Tensor:
    """Attend within each document; q [T, Hq, D], k and v [T, Hkv, D], result [T, Hq, Dv].

    Tokens after `cu_seqlens[-1]` are padding and give zeros. `window` counts tokens to the left and right, -1 for all.
    Raises `ConfigError` for `sinks`, which this kernel does not have.
    """
    if sinks is not None:
        raise ConfigError(
            "the attention kernel 'sdpa' has no attention sinks",
            where="attention = 'sdpa'",
            next_step="choose a kernel with the feature 'sinks' (see `prl plugins list --kind attention_kernel`)",
        )
    out = torch.zeros(q.shape[0], q.shape[1], v.shape[2], dtype=q.dtype, device=q.device)
    for group in _plan(cu_seqlens, padded=causal and window == (-1, -1)):
        attended = _attend(q, k, v, group, causal=causal, window=window, scale=softmax_scale)
        rows = group.rows if group.real is None else group.rows[group.real]
        out = out.index_copy(0, rows, attended if group.real is None else attended[group.real])
    return out


def _attend(
    q: Tensor, k: Tensor, v: Tensor, group: _Group, *, causal: bool, window: tuple[int, int], scale: float | None
) -> Tensor:
    """Return [N * length, Hq, Dv] of one group."""

    def batched(x: Tensor) -> Tensor:
        return x[group.rows].view(group.documents, group.length, *x.shape[1:]).transpose(1, 2)

    mask = _window_mask(group.length, causal, window, q.device)
    attended = scaled_dot_product_attention(
        batched(q),
        batched(k),
        batched(v),
        attn_mask=mask,
        is_causal=causal and mask is None,
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )
    return attended.transpose(1, 2).reshape(group.documents * group.length, q.shape[1], v.shape[2])


def _window_mask(length: int, causal: bool, window: tuple[int, int], device: torch.device) -> Tensor | None:
    """Return [length, length], True where a query (row) sees a key; None where `is_causal` or nothing says the same."""
    left, right = window
    right = 0 if causal else right
    if (left < 0 or left >= length - 1) and (causal or right < 0):
        return None
    offset = torch.arange(length, device=device)[None, :] - torch.arange(length, device=device)[:, None]
    mask = torch.ones(length, length, dtype=torch.bool, device=device)
    if left >= 0:
        mask &= offset >= -left
    if right >= 0:
        mask &= offset <= right
    return mask


def _plan(cu_seqlens: Tensor, *, padded: bool) -> list[_Group]:
    """Group the documents; made once per micro-batch, not once per layer (it reads `cu_seqlens` back to the host)."""
    plans = _plans.setdefault(cu_seqlens, {})
    if padded not in plans:
        plans[padded] = _make_plan(cu_seqlens.tolist(), cu_seqlens.device, _WASTE if padded else 1.0)
    return plans[padded]


def _make_plan(boundaries: Sequence[int], device: torch.device, waste: float) -> list[_Group]:
    spans = [(start, end) for start, end in pairwise(boundaries) if end > start]
    spans.sort(key=lambda span: span[1] - span[0], reverse=True)
    groups: list[list[tuple[int, int]]] = []
    tokens = 0
    for start, end in spans:
        length = groups[-1][0][1] - groups[-1][0][0] if groups else 0
        if groups and (len(groups[-1]) + 1) * length <= waste * (tokens + end - start):
            groups[-1].append((start, end))
            tokens += end - start
        else:
            groups.append([(start, end)])
            tokens = end - start
    return [_group(group, device) for group in groups]


def _group(spans: Sequence[tuple[int, int]], device: torch.device) -> _Group:
    length = spans[0][1] - spans[0][0]
    rows = [row if row < end else start for start, end in spans for row in range(start, start + length)]
    flags = [row < end for start, end in spans for row in range(start, start + length)]
    real = None if all(flags) else torch.tensor(flags, device=device).nonzero()[:, 0]
    return _Group(torch.tensor(rows, device=device), len(spans), length, real)
