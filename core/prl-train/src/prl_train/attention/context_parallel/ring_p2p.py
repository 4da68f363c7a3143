"""Keys and values travel round the ranks, one shard at a time: no rank ever holds more than two shards of them.

For the longest rows. Without windows: a shard that is not the queries' own would need a window with a negative side.
Shapes: S tokens of a shard, W ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from prl.contracts import AttentionPasses, Scoring, Varlen
from prl.types import ConfigError
from prl_train.attention.bound import BoundKernel
from prl_train.attention.sinks import add_sinks, sinks_gradient

from .collectives import pass_on

if TYPE_CHECKING:
    from .plan import RowPlan


@dataclass(frozen=True, slots=True)
class RingP2PStrategy:
    """Point-to-point ring: parts of a query's attention are put together by their log-sum-exp."""

    name: str = "ring-p2p"

    def obstacle(self, bound: BoundKernel, *, heads: int, kv_heads: int, world: int) -> str:
        """Say why it cannot work: the kernel must give the log-sum-exp, and attend without a causal mask."""
        lacking = [one for one in ("lse", "non_causal") if one not in bound.features]
        return f"the attention kernel {bound.name!r} has no {' nor '.join(map(repr, lacking))}" if lacking else ""

    def attend(self, plan: RowPlan, bound: BoundKernel, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        """Attend for this rank's queries; result [S, Hq, Dv]."""
        sinks = options.pop("sinks", None)
        scoring = Scoring.of(q.shape[-1], **options)
        if scoring.window != (-1, -1):
            raise ConfigError(
                "context parallelism by a point-to-point ring has no sliding windows",
                where=f"{self.name!r} on a model with sliding-window layers",
                next_step='choose "ring" or "ulysses"',
            )
        bound.require("lse", "context parallelism by ring needs it")
        out: Tensor = _Travel.apply(q, k, v, sinks, plan, bound.passes, scoring)  # type: ignore[no-untyped-call]
        return out


@dataclass(frozen=True, slots=True)
class _Part:
    """What this rank's queries see of one rank's keys: stretches of both shards, and their documents."""

    queries: slice
    keys: slice
    varlen: Varlen
    causal: bool


class _Travel(torch.autograd.Function):
    """Attend to each shard as it comes by; backward: the gradients of keys travel on with their keys."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        sinks: Tensor | None,
        plan: RowPlan,
        passes: AttentionPasses,
        scoring: Scoring,
    ) -> Tensor:
        exact = torch.float64 if q.dtype == torch.float64 else torch.float32
        out = torch.zeros(*q.shape[:2], v.shape[2], dtype=exact, device=q.device)
        lse = torch.full((q.shape[1], q.shape[0]), -torch.inf, dtype=exact, device=q.device)
        both = torch.cat([k, v], -1)
        for step in range(plan.world):
            if step:
                both = pass_on(both, plan.group)
            for part in _parts(plan, (plan.rank - step) % plan.world, scoring.causal):
                keys, values = _split(both[part.keys], k.shape[-1])
                given = part.varlen, replace(scoring, causal=part.causal)
                more = passes.forward(q[part.queries].contiguous(), keys, values, *given)
                _merge(out[part.queries], lse[:, part.queries], *more)
        out, lse = add_sinks(out, lse, sinks)
        out = out.to(q.dtype)
        ctx.save_for_backward(q, k, v, sinks, out, lse)
        ctx.how = (plan, passes, scoring)
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, sinks, out, lse = ctx.saved_tensors
        plan, passes, scoring = ctx.how
        dq = torch.zeros(q.shape, dtype=lse.dtype, device=q.device)
        both = torch.cat([k, v], -1)
        flow = torch.zeros(both.shape, dtype=lse.dtype, device=q.device)
        for step in range(plan.world):
            for part in _parts(plan, (plan.rank - step) % plan.world, scoring.causal):
                keys, values = _split(both[part.keys], k.shape[-1])
                mine = [x[part.queries].contiguous() for x in (dout, q, out)]
                given = lse[:, part.queries].contiguous(), part.varlen, replace(scoring, causal=part.causal)
                grads = passes.backward(mine[0], mine[1], keys, values, mine[2], *given)
                dq[part.queries] += grads[0]
                flow[part.keys] += torch.cat([grads[1], grads[2]], -1)
            both, flow = pass_on(both, plan.group), pass_on(flow, plan.group)  # after W turns each is back at its owner
        dk, dv = _split(flow, k.shape[-1])
        dsinks = sinks_gradient(dout, out, lse, sinks)
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), dsinks, None, None, None


def _parts(plan: RowPlan, other: int, causal: bool) -> Iterator[_Part]:
    """Yield what this rank's queries see of another rank's keys: nothing, one part, or of their own all documents."""
    size = plan.shard_length
    start, first_key = plan.rank * size, other * size
    if other == plan.rank:
        lengths = [min(b, start + size) - max(a, start) for a, b in pairwise(plan.borders)]
        kept = [length for length in lengths if length > 0]
        yield _Part(slice(0, size), slice(0, size), _varlen(kept, kept, plan), causal)
        return
    if causal and other > plan.rank:
        return
    for a, b in pairwise(plan.borders):
        queries = slice(max(a, start) - start, min(b, start + size) - start)
        keys = slice(max(a, first_key) - first_key, min(b, first_key + size) - first_key)
        if queries.stop > queries.start and keys.stop > keys.start:
            counts = [queries.stop - queries.start], [keys.stop - keys.start]
            yield _Part(queries, keys, _varlen(*counts, plan), False)


def _varlen(queries: Sequence[int], keys: Sequence[int], plan: RowPlan) -> Varlen:
    device = plan.whole.cu_seqlens_q.device
    cu_q, cu_k = (
        torch.tensor([0, *torch.tensor(counts).cumsum(0).tolist()], dtype=torch.int32, device=device)
        for counts in (queries, keys)
    )
    return Varlen(cu_q, cu_k, max(queries), max(keys))


def _split(both: Tensor, size: int) -> tuple[Tensor, Tensor]:
    return both[..., :size].contiguous(), both[..., size:].contiguous()


def _merge(out: Tensor, lse: Tensor, more: Tensor, more_lse: Tensor) -> None:
    """Put a part's output and log-sum-exp into out [L, H, D] and lse [H, L], in place."""
    total = torch.logaddexp(lse, more_lse.to(lse.dtype))
    finite = total.masked_fill(total == -torch.inf, 0.0)
    old, new = (torch.exp(one - finite).T[..., None] for one in (lse, more_lse))
    out.copy_(out * old + more * new)
    lse.copy_(total)
