"""Attention sinks from the log-sum-exp: exact for any kernel, since a sink only takes a share of the softmax.

Shapes: T queries, Hq heads. A sink is one more logit a head, without a value.
"""

from __future__ import annotations

import torch
from torch import Tensor

from prl.contracts import AttentionPasses, Varlen


def add_sinks(out: Tensor, lse: Tensor, sinks: Tensor) -> tuple[Tensor, Tensor]:
    """Give sinks [Hq] their share of out [T, Hq, D] and lse [Hq, T]; a query without keys stays zero."""
    with_sinks = torch.logaddexp(lse, sinks[:, None].to(lse.dtype))
    kept = torch.exp(lse - with_sinks)
    return (out * kept.T[..., None]).to(out.dtype), with_sinks


def sinks_gradient(dout: Tensor, out: Tensor, lse: Tensor, sinks: Tensor) -> Tensor:
    """Return the gradient of sinks [Hq]; out and lse are those with the sinks' share."""
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

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        varlen: Varlen,
        *,
        causal: bool,
        window: tuple[int, int],
        scale: float,
        sinks: Tensor | None = None,
        softcap: float = 0.0,
    ) -> tuple[Tensor, Tensor]:
        """Return out [Tq, Hq, D] and lse [Hq, Tq], with the sinks' share."""
        out, lse = self._passes.forward(q, k, v, varlen, causal=causal, window=window, scale=scale, **_softcap(softcap))
        return (out, lse) if sinks is None else add_sinks(out, lse, sinks)

    def backward(
        self,
        dout: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        varlen: Varlen,
        *,
        causal: bool,
        window: tuple[int, int],
        scale: float,
        sinks: Tensor | None = None,
        softcap: float = 0.0,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Return the gradients of q, k, v and sinks."""
        dq, dk, dv, _ = self._passes.backward(
            dout, q, k, v, out, lse, varlen, causal=causal, window=window, scale=scale, **_softcap(softcap)
        )
        return dq, dk, dv, None if sinks is None else sinks_gradient(dout, out, lse, sinks)


def _softcap(softcap: float) -> dict[str, float]:
    return {"softcap": softcap} if softcap else {}
