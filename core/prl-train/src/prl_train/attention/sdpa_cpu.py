"""The two passes on torch's CPU flash attention: document by document, and never a mask over a whole row.

Shapes: Lq and Lk tokens of one document. The operator aligns causality to the top left; where the lengths differ, or
there is a window, queries go in blocks with a mask over only the keys that the block can see.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from prl.contracts import Scoring, Varlen

from .naive import documents, exact_dtype
from .sinks import add_sinks, sinks_gradient

_BLOCK = 256
_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


@dataclass(frozen=True, slots=True)
class _Piece:
    """One call of the operator. Every query of it sees at least one key of it."""

    queries: slice
    keys: slice
    causal: bool
    mask: Tensor | None


class CpuPasses:
    """`AttentionPasses` on the CPU, for keys and values of one head size and without a soft cap."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, varlen: Varlen, scoring: Scoring) -> tuple[Tensor, Tensor]:
        """Return out [Tq, Hq, D] and lse [Hq, Tq]."""
        out = torch.zeros_like(q)
        lse = torch.full((q.shape[1], q.shape[0]), -torch.inf, dtype=exact_dtype(q), device=q.device)
        for piece in _pieces(varlen, scoring, q.dtype):
            attended, total = _forward(
                _batched(q[piece.queries]),
                _batched(k[piece.keys]),
                _batched(v[piece.keys]),
                0.0,
                piece.causal,
                attn_mask=piece.mask,
                scale=scoring.scale,
            )
            out[piece.queries] = attended[0].transpose(0, 1)
            lse[:, piece.queries] = total[0]
        return add_sinks(out, lse, scoring.sinks)

    def backward(
        self,
        dout: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        varlen: Varlen,
        scoring: Scoring,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Return the gradients of q, k, v and sinks."""
        dq, dk, dv = (torch.zeros_like(x) for x in (q, k, v))
        for piece in _pieces(varlen, scoring, q.dtype):
            queries, keys, values = (_batched(x) for x in (q[piece.queries], k[piece.keys], v[piece.keys]))
            # The operator reads the log-sum-exp by its own strides: queries before heads.
            total = lse[None, :, piece.queries].transpose(1, 2).contiguous().transpose(1, 2)
            flow, attended = (_batched(x[piece.queries]) for x in (dout, out))
            given = (flow, queries, keys, values, attended, total)
            grads = _backward(*given, 0.0, piece.causal, attn_mask=piece.mask, scale=scoring.scale)
            dq[piece.queries] = grads[0][0].transpose(0, 1)
            dk[piece.keys] += grads[1][0].transpose(0, 1)
            dv[piece.keys] += grads[2][0].transpose(0, 1)
        return dq, dk, dv, sinks_gradient(dout, out, lse, scoring.sinks)


def _batched(x: Tensor) -> Tensor:
    """Return [1, H, L, D] of [L, H, D]."""
    return x.transpose(0, 1)[None]


def _pieces(varlen: Varlen, scoring: Scoring, dtype: torch.dtype) -> Iterator[_Piece]:
    """Cut each document into calls; queries that see no key are in none."""
    left, right = scoring.sides
    for first, end, key, key_end in documents(varlen):
        length, keys = end - first, key_end - key
        if not keys:
            continue
        whole = left < 0 or left >= keys - 1
        if whole and (right < 0 or (right == 0 and length == keys)):
            yield _Piece(slice(first, end), slice(key, key_end), right == 0, None)
            continue
        shift = keys - length
        for start in range(max(0, -shift - right) if right >= 0 else 0, length, _BLOCK):
            stop = min(length, start + _BLOCK)
            low = 0 if whole else max(0, start + shift - left)
            high = keys if right < 0 else min(keys, stop + shift + right)
            place = torch.arange(start, stop)[:, None] + shift
            offset = torch.arange(low, high)[None, :] - place
            hidden = torch.zeros_like(offset, dtype=torch.bool)
            if not whole:
                hidden |= offset < -left
            if right >= 0:
                hidden |= offset > right
            mask = torch.zeros(offset.shape, dtype=dtype).masked_fill(hidden, -torch.inf)
            yield _Piece(slice(first + start, first + stop), slice(key + low, key + high), False, mask)
