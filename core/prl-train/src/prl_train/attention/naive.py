"""Attention written out, document by document: what serves where no operator does, and the others' oracle.

Shapes: Lq and Lk tokens of one document, G query heads a key head. Queries go in blocks: memory is linear in Lk.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from prl.contracts import Scoring, Varlen

from .sinks import add_sinks, sinks_gradient

_BLOCK = 512


@dataclass(frozen=True, slots=True)
class Rows:
    """A stretch of one document's queries, and the document's keys; `place` is the first query's among the keys."""

    queries: slice
    keys: slice
    place: int


@dataclass(frozen=True, slots=True)
class _Scores:
    """Scores of one stretch of queries: their softmax weights exp(value - lse), and what the cap does to a gradient."""

    value: Tensor  # [Hkv, G, Lq, Lk], hidden keys -inf
    slope: Tensor | float


def documents(varlen: Varlen) -> list[tuple[int, int, int, int]]:
    """Return (first query, end, first key, end) of each document that has queries; reads the borders to the host."""
    queries, keys = (list(pairwise(cu.tolist())) for cu in (varlen.cu_seqlens_q, varlen.cu_seqlens_k))
    return [(*q, *k) for q, k in zip(queries, keys, strict=True) if q[1] > q[0]]


class NaivePasses:
    """`AttentionPasses` in float32, or in float64 for float64 inputs, with every feature."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, varlen: Varlen, scoring: Scoring) -> tuple[Tensor, Tensor]:
        """Return out [Tq, Hq, Dv] and lse [Hq, Tq]."""
        exact = exact_dtype(q)
        out = torch.zeros(*q.shape[:2], v.shape[2], dtype=q.dtype, device=q.device)
        lse = torch.full((q.shape[1], q.shape[0]), -torch.inf, dtype=exact, device=q.device)
        for rows in _blocks(varlen):
            value = _scores(q, k, rows, scoring).value
            total = torch.logsumexp(value, -1)
            weights = torch.exp(value - total.masked_fill(total == -torch.inf, 0.0)[..., None])
            attended = torch.einsum("hgqk,khd->qhgd", weights, v[rows.keys].to(exact))
            out[rows.queries] = attended.flatten(1, 2).to(q.dtype)
            lse[:, rows.queries] = total.flatten(0, 1)
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
        exact = exact_dtype(q)
        dq, dk, dv = (torch.zeros(x.shape, dtype=exact, device=x.device) for x in (q, k, v))
        grouped = (k.shape[1], q.shape[1] // k.shape[1])
        for rows in _blocks(varlen):
            scores = _scores(q, k, rows, scoring)
            total = lse[:, rows.queries].to(exact).reshape(*grouped, -1)
            weights = torch.exp(scores.value - total.masked_fill(total == -torch.inf, 0.0)[..., None])
            flow = _grouped(dout[rows.queries].to(exact), grouped)
            delta = (flow * _grouped(out[rows.queries].to(exact), grouped)).sum(-1).permute(1, 2, 0)
            dweights = torch.einsum("qhgd,khd->hgqk", flow, v[rows.keys].to(exact))
            dscores = weights * (dweights - delta[..., None]) * scores.slope * scoring.scale
            dq[rows.queries] = torch.einsum("hgqk,khd->qhgd", dscores, k[rows.keys].to(exact)).flatten(1, 2)
            queries = _grouped(q[rows.queries].to(exact), grouped)
            dk[rows.keys] += torch.einsum("hgqk,qhgd->khd", dscores, queries)
            dv[rows.keys] += torch.einsum("hgqk,qhgd->khd", weights, flow)
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), sinks_gradient(dout, out, lse, scoring.sinks)


def exact_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of the log-sum-exp: float64 for float64, else float32."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _grouped(x: Tensor, groups: tuple[int, int]) -> Tensor:
    """Return [L, Hkv, G, D] of [L, Hq, D]."""
    return x.reshape(x.shape[0], *groups, x.shape[2])


def _blocks(varlen: Varlen) -> Iterator[Rows]:
    for first, end, key, key_end in documents(varlen):
        for start in range(first, end, _BLOCK):
            stop = min(end, start + _BLOCK)
            yield Rows(slice(start, stop), slice(key, key_end), start - first + (key_end - key) - (end - first))


def _scores(q: Tensor, k: Tensor, rows: Rows, scoring: Scoring) -> _Scores:
    exact = exact_dtype(q)
    queries = _grouped(q[rows.queries].to(exact), (k.shape[1], q.shape[1] // k.shape[1]))
    keys = k[rows.keys].to(exact)
    value = torch.einsum("qhgd,khd->hgqk", queries, keys) * scoring.scale
    slope: Tensor | float = 1.0
    if scoring.softcap:
        capped = torch.tanh(value / scoring.softcap)
        value, slope = capped * scoring.softcap, 1 - capped * capped
    place = torch.arange(queries.shape[0], device=q.device)[:, None] + rows.place
    distance = torch.arange(keys.shape[0], device=q.device)[None, :] - place
    left, right = scoring.sides
    hidden = torch.zeros_like(distance, dtype=torch.bool)
    if left >= 0:
        hidden |= distance < -left
    if right >= 0:
        hidden |= distance > right
    return _Scores(value.masked_fill(hidden, -torch.inf), slope)
