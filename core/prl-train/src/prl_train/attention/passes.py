"""One differentiable callable out of a kernel's forward and backward passes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from prl.contracts import AttentionPasses, Varlen


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
        options: dict[str, Any],
    ) -> Tensor:
        """Run the forward pass and keep what the backward needs."""
        given = options if sinks is None else {**options, "sinks": sinks}
        out, lse = passes.forward(q, k, v, varlen, **given)
        # The borders go through save_for_backward too: activation checkpointing then counts them as saved tensors.
        ctx.save_for_backward(q, k, v, sinks, out, lse, varlen.cu_seqlens_q, varlen.cu_seqlens_k)
        ctx.how = (passes, (varlen.max_seqlen_q, varlen.max_seqlen_k), options)
        result: Tensor = out
        return result

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        """Run the backward pass."""
        q, k, v, sinks, out, lse, cu_q, cu_k = ctx.saved_tensors
        passes, longest, options = ctx.how
        given = options if sinks is None else {**options, "sinks": sinks}
        varlen = Varlen(cu_q, cu_k, *longest)
        dq, dk, dv, dsinks = passes.backward(dout.contiguous(), q, k, v, out, lse, varlen, **given)
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
        options: dict[str, Any] = {"causal": causal, "window": window, "scale": scale_of(q, softmax_scale)}
        if softcap:
            options["softcap"] = softcap
        varlen = Varlen(cu_seqlens, cu_seqlens, max_seqlen, max_seqlen)
        result: Tensor = _Attend.apply(q, k, v, sinks, self._passes, varlen, options)  # type: ignore[no-untyped-call]
        return result


def scale_of(q: Tensor, softmax_scale: float | None) -> float:
    """Return the scale of the scores: the given one, 0.0 included, or D ** -0.5."""
    return float(q.shape[-1]) ** -0.5 if softmax_scale is None else softmax_scale
