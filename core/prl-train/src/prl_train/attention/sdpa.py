"""torch's scaled dot product attention over packed sequences: per document, never a mask over the whole row.

Plain causal attention pads documents of similar length to one batch. Under a causal mask a document's tokens never see
the padding after them, so no mask is needed and the result is that of each document alone. Windows, sinks and the
passes with the log-sum-exp go to torch's flash operators of the device; what those do not take is written out.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.weak import WeakTensorKeyDictionary

from prl.contracts import AttentionPasses, Scoring, Varlen

from . import sdpa_cuda
from .naive import NaivePasses
from .passes import DerivedKernel
from .sdpa_cpu import CpuPasses

_WASTE = 1.05
"""A batch of documents may have this many times the tokens of its documents: calls cost more than a little padding."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is attended in one call each: `groups` are pairs (documents, length they are padded to).

    `rows` [N] are the row numbers of all groups, padding repeats a document's start; `places` [T] says where in them
    each token stands, without the tokens after the last document.
    """

    groups: list[tuple[int, int]]
    rows: Tensor
    places: Tensor


_plans: MutableMapping[Tensor, dict[bool, _Plan]] = WeakTensorKeyDictionary()


class Sdpa:
    """The kernel `sdpa`: an `AttentionKernel`, and `AttentionPasses`; every feature, on CPU and CUDA."""

    def __init__(self) -> None:
        self._derived = DerivedKernel(self)

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
        """Attend within each document; q [T, Hq, D], k and v [T, Hkv, D], result [T, Hq, Dv].

        Tokens after `cu_seqlens[-1]` are padding and give zeros. `window` counts tokens to the left and right, -1 for
        all.
        """
        if softmax_scale is not None:
            q, softmax_scale = _positive(q, softmax_scale)
        if window == (-1, -1) and sinks is None and not softcap and not sdpa_cuda.serves(q, v, softcap):
            return _by_groups(q, k, v, cu_seqlens, causal, softmax_scale)
        return self._derived(
            q,
            k,
            v,
            cu_seqlens=cu_seqlens,
            max_seqlen=max_seqlen,
            causal=causal,
            window=window,
            softmax_scale=softmax_scale,
            sinks=sinks,
            softcap=softcap,
        )

    def forward(self, q: Tensor, k: Tensor, v: Tensor, varlen: Varlen, scoring: Scoring) -> tuple[Tensor, Tensor]:
        """Return out [Tq, Hq, Dv] and lse [Hq, Tq]."""
        q, scale = _positive(q, scoring.scale)
        return _passes(q, v, scoring.softcap).forward(q, k, v, varlen, replace(scoring, scale=scale))

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
        scaled, scale = _positive(q, scoring.scale)
        passes = _passes(q, v, scoring.softcap)
        dq, *others = passes.backward(dout, scaled, k, v, out, lse, varlen, replace(scoring, scale=scale))
        return dq if scaled is q else dq * scoring.scale, *others


def _positive(q: Tensor, scale: float) -> tuple[Tensor, float]:
    """Return queries and a scale above 0: torch's operators scale masked scores too, and -inf * 0 is no number."""
    return (q, scale) if scale > 0 else (q * scale, 1.0)


def create() -> Sdpa:
    """Return the kernel."""
    return Sdpa()


sdpa = Sdpa()
_on_cpu, _on_cuda, _written_out = CpuPasses(), sdpa_cuda.CudaPasses(), NaivePasses()


def _passes(q: Tensor, v: Tensor, softcap: float) -> AttentionPasses:
    """Choose the passes for a call: the device's flash operators where they take it."""
    if sdpa_cuda.serves(q, v, softcap):
        return _on_cuda
    if q.device.type == "cpu" and not softcap and q.shape[-1] == v.shape[-1]:
        return _on_cpu
    return _written_out


def _by_groups(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, causal: bool, softmax_scale: float | None
) -> Tensor:
    """Attend in full, documents of similar length in one call; differentiable by torch itself."""
    plan = _plan(cu_seqlens, padded=causal)
    sizes = [documents * length for documents, length in plan.groups]
    # One gather for all groups: each of its own would have a backward pass over the whole row.
    queries, keys, values = (x[plan.rows].split_with_sizes(sizes) for x in (q, k, v))
    attended = [
        _attend(query, key, value, documents, causal, softmax_scale)
        for (documents, _), query, key, value in zip(plan.groups, queries, keys, values, strict=True)
    ]
    out = torch.cat([*attended, q.new_zeros(0, q.shape[1], v.shape[2])])[plan.places]
    unused = q.shape[0] - len(plan.places)
    return out if not unused else torch.cat([out, out.new_zeros(unused, *out.shape[1:])])


def _attend(q: Tensor, k: Tensor, v: Tensor, documents: int, causal: bool, scale: float | None) -> Tensor:
    """Return [documents * length, Hq, Dv] of one group."""

    def batched(x: Tensor) -> Tensor:
        return x.view(documents, -1, *x.shape[1:]).transpose(1, 2)

    attended = scaled_dot_product_attention(
        batched(q),
        batched(k),
        batched(v),
        attn_mask=None,
        is_causal=causal,
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )
    return attended.transpose(1, 2).reshape(q.shape[0], q.shape[1], v.shape[2])


def _plan(cu_seqlens: Tensor, *, padded: bool) -> _Plan:
    """Group the documents; made once per micro-batch, not once per layer (it reads `cu_seqlens` back to the host)."""
    plans = _plans.setdefault(cu_seqlens, {})
    if padded not in plans:
        plans[padded] = _make_plan(cu_seqlens.tolist(), cu_seqlens.device, _WASTE if padded else 1.0)
    return plans[padded]


def _make_plan(boundaries: Sequence[int], device: torch.device, waste: float) -> _Plan:
    spans = [(start, end) for start, end in pairwise(boundaries) if end > start]
    spans.sort(key=lambda span: span[1] - span[0], reverse=True)
    groups: list[tuple[int, int]] = []
    rows: list[int] = []
    places = [0] * boundaries[-1]
    tokens = 0
    for start, end in spans:
        documents, length = groups[-1] if groups else (0, 0)
        if groups and (documents + 1) * length <= waste * (tokens + end - start):
            groups[-1] = documents + 1, length
        else:
            length, tokens = end - start, 0
            groups.append((1, length))
        tokens += end - start
        places[start:end] = range(len(rows), len(rows) + end - start)
        rows += [*range(start, end), *[start] * (length - (end - start))]
    return _Plan(groups, torch.tensor(rows, device=device), torch.tensor(places, device=device))
