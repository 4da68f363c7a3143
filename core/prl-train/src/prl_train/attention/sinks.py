"""Attention sinks from the log-sum-exp: exact for any kernel, since a sink only takes a share of the softmax.

Shapes: T queries, Hq heads. A sink is one more logit a head, without a value.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from prl.contracts import AttentionPasses, Scoring, Varlen


def add_sinks(out: Tensor, lse: Tensor, sinks: Tensor | None) -> tuple[Tensor, Tensor]:
    """Give sinks [Hq], if any, their share of out [T, Hq, D] and lse [Hq, T]; a query without keys stays zero."""
    if sinks is None:
        return out, lse
    with_sinks = torch.logaddexp(lse, sinks[:, None].to(lse.dtype))
    kept = torch.exp(lse - with_sinks)
    return (out * kept.T[..., None]).to(out.dtype), with_sinks


def sinks_gradient(dout: Tensor, out: Tensor, lse: Tensor, sinks: Tensor | None) -> Tensor | None:
    """Return the gradient of sinks [Hq], None without any; out and lse are those with the sinks' share."""
    if sinks is None:
        return None
    delta = (dout.to(lse.dtype) * out.to(lse.dtype)).sum(-1).T
    share = torch.exp(sinks[:, None].to(lse.dtype) - lse)
    return -(share * delta).sum(1).to(sinks.dtype)


class SinksFromLse:
    """Passes of a kernel that has no sinks, with sinks.

    The probabilities are exp(score - lse), so the kernel's own backward is right as it stands when it is given the
    output and the log-sum-exp that include the sinks.
    """

    def __init__(self, passes: AttentionPasses) -> None:
        self._passes = passes

    def forward(self, q: Tensor, k: Tensor, v: Tensor, varlen: Varlen, scoring: Scoring) -> tuple[Tensor, Tensor]:
        """Return out [Tq, Hq, D] and lse [Hq, Tq], with the sinks' share."""
        out, lse = self._passes.forward(q, k, v, varlen, replace(scoring, sinks=None))
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
        dq, dk, dv, _ = self._passes.backward(dout, q, k, v, out, lse, varlen, replace(scoring, sinks=None))
        return dq, dk, dv, sinks_gradient(dout, out, lse, scoring.sinks)
