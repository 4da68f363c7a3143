"""The two passes on torch's own CUDA flash attention, which takes packed documents as they are.

Written from the operators' schemas (torch 2.13, `aten::_flash_attention_forward` and `_backward`), as
`torch.nn.attention.varlen` calls them. Half precision only; a query without keys has +inf as its log-sum-exp there.
"""

from __future__ import annotations

import torch
from torch import Tensor

from prl.contracts import Scoring, Varlen

from .sinks import add_sinks, sinks_gradient

_HALF = (torch.bfloat16, torch.float16)


def serves(q: Tensor, v: Tensor, softcap: float) -> bool:
    """Say whether the operators take these tensors."""
    return (
        q.device.type == "cuda"
        and q.dtype in _HALF
        and not softcap
        and q.shape[-1] == v.shape[-1]
        and q.shape[-1] % 8 == 0
        and q.shape[-1] <= 256
    )


class CudaPasses:
    """`AttentionPasses` on a CUDA device of compute capability 8.0 or newer."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, varlen: Varlen, scoring: Scoring) -> tuple[Tensor, Tensor]:
        """Return out [Tq, Hq, D] and lse, float32 [Hq, Tq]."""
        out, lse, *_ = torch.ops.aten._flash_attention_forward(
            q.contiguous(),
            k.contiguous(),
            v.contiguous(),
            *_borders(varlen),
            0.0,
            scoring.causal,
            False,
            scale=scoring.scale,
            **_window(scoring),
        )
        lse = lse.masked_fill(lse == torch.inf, -torch.inf)
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
        unused = torch.empty(0, dtype=torch.uint64, device=q.device)
        dq, dk, dv = torch.ops.aten._flash_attention_backward(
            dout.contiguous(),
            q.contiguous(),
            k.contiguous(),
            v.contiguous(),
            out.contiguous(),
            lse.masked_fill(lse == -torch.inf, torch.inf).contiguous(),
            *_borders(varlen),
            0.0,
            scoring.causal,
            torch.zeros(2, dtype=torch.uint64, device=q.device),
            unused,
            scale=scoring.scale,
            **_window(scoring),
        )
        return dq, dk, dv, sinks_gradient(dout, out, lse, scoring.sinks)


def _borders(varlen: Varlen) -> tuple[Tensor, Tensor, int, int]:
    return varlen.cu_seqlens_q, varlen.cu_seqlens_k, varlen.max_seqlen_q, varlen.max_seqlen_k


def _window(scoring: Scoring) -> dict[str, int]:
    return dict(zip(("window_size_left", "window_size_right"), scoring.sides, strict=True))
