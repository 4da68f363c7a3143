"""Attention written out in float32, one document at a time, and a callable out of a kernel's two passes.

Shapes: Tq and Tk tokens, Hq query heads, Hkv key heads, D head size. torch is found when a check runs, never on import.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

from prl.contracts import AttentionPasses, Scoring, Varlen

from .check import NotApplicable


def torch_module() -> Any:
    """Find torch, which prl-core does not depend on."""
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise NotApplicable("torch is not installed") from error


def borders(lengths: Sequence[int], device: str) -> Any:
    """Return the documents' borders, int32 [N + 1]."""
    torch = torch_module()
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)


def varlen_of(q_lengths: Sequence[int], k_lengths: Sequence[int], device: str) -> Varlen:
    """Return where documents of these lengths lie."""
    return Varlen(borders(q_lengths, device), borders(k_lengths, device), max(q_lengths), max(k_lengths))


def plain_attention(
    q: Any, k: Any, v: Any, scoring: Scoring, q_lengths: Sequence[int], k_lengths: Sequence[int] | None = None
) -> tuple[Any, Any]:
    """Return the output [Tq, Hq, D] and the log-sum-exp [Hq, Tq] in float32."""
    torch = torch_module()
    group = q.shape[1] // k.shape[1]
    keys, values = (x.float().repeat_interleave(group, dim=1) for x in (k, v))
    ends = zip(pairwise([0, *accumulate(q_lengths)]), pairwise([0, *accumulate(k_lengths or q_lengths)]), strict=True)
    parts = [_document(q[a:b].float(), keys[c:d], values[c:d], scoring) for (a, b), (c, d) in ends]
    return torch.cat([out for out, _ in parts]), torch.cat([lse for _, lse in parts], dim=1)


def _document(q: Any, k: Any, v: Any, scoring: Scoring) -> tuple[Any, Any]:
    torch = torch_module()
    window, sinks = scoring.window, scoring.sinks
    scores = torch.einsum("qhd,khd->hqk", q, k) * scoring.scale
    if scoring.softcap:
        scores = scoring.softcap * torch.tanh(scores / scoring.softcap)
    place = torch.arange(q.shape[0], device=q.device)[:, None] + (k.shape[0] - q.shape[0])
    ahead = torch.arange(k.shape[0], device=q.device)[None, :] - place
    seen = torch.ones_like(ahead, dtype=torch.bool)
    limits = ((scoring.causal, ahead <= 0), (window[0] >= 0, ahead >= -window[0]), (window[1] >= 0, ahead <= window[1]))
    for is_asked, shown in limits:
        if is_asked:
            seen = seen & shown
    scores = scores.masked_fill(~seen, -torch.inf)
    if sinks is not None:
        scores = torch.cat([sinks.float()[:, None, None].expand(-1, q.shape[0], 1), scores], dim=-1)
        v = torch.cat([torch.zeros_like(v[:1]) if v.shape[0] else v.new_zeros(1, *v.shape[1:]), v])
    lse = torch.logsumexp(scores, dim=-1) if scores.shape[-1] else scores.new_full(scores.shape[:2], -torch.inf)
    some = lse > -torch.inf
    weights = torch.where(some[..., None], torch.exp(scores - torch.where(some, lse, 0.0)[..., None]), 0.0)
    return torch.einsum("hqk,khd->qhd", weights, v), lse


def callable_of(passes: AttentionPasses) -> Any:
    """Return a differentiable callable, an `AttentionKernel`, out of two passes."""

    def call(
        q: Any,
        k: Any,
        v: Any,
        *,
        cu_seqlens: Any,
        max_seqlen: int,
        sinks: Any = None,
        **options: Any,
    ) -> Any:
        varlen = Varlen(cu_seqlens, cu_seqlens, max_seqlen, max_seqlen)
        return _function().apply(q, k, v, sinks, passes, varlen, Scoring.of(q.shape[2], **options))

    return call


@functools.cache
def _function() -> Any:
    """Return the autograd function of two passes; made when torch is there."""
    torch = torch_module()

    def forward(ctx: Any, q: Any, k: Any, v: Any, sinks: Any, passes: Any, varlen: Any, scoring: Scoring) -> Any:
        given = replace(scoring, sinks=sinks)
        out, lse = passes.forward(q, k, v, varlen, given)
        ctx.kept = (q, k, v, out, lse, varlen, passes, given)
        return out

    def backward(ctx: Any, dout: Any) -> Any:
        q, k, v, out, lse, varlen, passes, given = ctx.kept
        grads = passes.backward(dout.contiguous(), q, k, v, out, lse, varlen, given)
        return (*grads[:3], None if given.sinks is None else grads[3], None, None, None)

    parts = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type("TwoPasses", (torch.autograd.Function,), parts)
