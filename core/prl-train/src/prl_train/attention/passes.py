"""One differentiable callable out of a kernel's forward and backward passes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from prl.contracts import AttentionPasses, Scoring, Varlen


class _Attend(torch.autograd.Function):
    """The autograd node of a kernel's two passes."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        sinks: Tensor | None,
        passes: AttentionPasses,
        varlen: Varlen,
        scoring: Scoring,
    ) -> Tensor:
        """Run the forward pass and keep what the backward needs."""
        out, lse = passes.forward(q, k, v, varlen, replace(scoring, sinks=sinks))
        # The borders go through save_for_backward too: activation checkpointing then counts them as saved tensors.
        ctx.save_for_backward(q, k, v, sinks, out, lse, varlen.cu_seqlens_q, varlen.cu_seqlens_k)
        ctx.how = (passes, (varlen.max_seqlen_q, varlen.max_seqlen_k), scoring)
        result: Tensor = out
        return result

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        """Run the backward pass."""
        q, k, v, sinks, out, lse, cu_q, cu_k = ctx.saved_tensors
        passes, longest, scoring = ctx.how
        given = Varlen(cu_q, cu_k, *longest), replace(scoring, sinks=sinks)
        dq, dk, dv, dsinks = passes.backward(dout.contiguous(), q, k, v, out, lse, *given)
        return dq, dk, dv, dsinks, None, None, None


class DerivedKernel:
    """An `AttentionKernel` made of `AttentionPasses`."""

    def __init__(self, passes: AttentionPasses) -> None:
        self._passes = passes

    def __call__(
        self,
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
        """Attend within each document; q [T, Hq, D], k and v [T, Hkv, D], result [T, Hq, Dv]."""
        scoring = Scoring.of(q.shape[-1], causal=causal, window=window, softmax_scale=softmax_scale, softcap=softcap)
        varlen = Varlen(cu_seqlens, cu_seqlens, max_seqlen, max_seqlen)
        result: Tensor = _Attend.apply(q, k, v, sinks, self._passes, varlen, scoring)  # type: ignore[no-untyped-call]
        return result
