"""Keys and values from all ranks, a few heads at a time; each rank attends its own queries.

Works with any kernel that gives the log-sum-exp, windows, sinks and every number of heads. Shapes: S tokens of a shard,
W ranks, Hq and Hkv heads, G = Hq / Hkv.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from prl.contracts import AttentionPasses, Scoring
from prl.types import ConfigError
from prl_train.attention.bound import BoundKernel

from .collectives import all_gather, reduce_scatter

if TYPE_CHECKING:
    from .plan import RowPlan

_HALF = (torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class RingStrategy:
    """All-gather of keys and values, `head_stride` key heads at a time: memory grows with it, calls fall."""

    head_stride: int = 1
    name: str = "ring"

    def obstacle(self, bound: BoundKernel, *, heads: int, kv_heads: int, world: int) -> str:
        """Say why it cannot work: the kernel must give the log-sum-exp."""
        return "" if bound.passes is not None else f"the attention kernel {bound.name!r} has no 'lse'"

    def attend(self, plan: RowPlan, bound: BoundKernel, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        """Attend for this rank's queries; result [S, Hq, Dv]."""
        if bound.passes is None:
            bound.require("lse", "context parallelism by ring needs it")
        sinks = options.pop("sinks", None)
        scoring = Scoring.of(q.shape[-1], **options)
        if not scoring.causal and scoring.window != (-1, -1):
            raise ConfigError(
                "context parallelism by ring has no sliding window that looks ahead",
                where="a layer with is_causal = False and a sliding window",
                next_step='choose context_parallel = "ulysses"',
            )
        out: Tensor = _RingAttend.apply(q, k, v, sinks, plan, bound.passes, self.head_stride, scoring)  # type: ignore[no-untyped-call]
        return out


class _RingAttend(torch.autograd.Function):
    """Gather, attend; backward: gather again, attend, add the gradients of keys up at their owners."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        sinks: Tensor | None,
        plan: RowPlan,
        passes: AttentionPasses,
        stride: int,
        scoring: Scoring,
    ) -> Tensor:
        cut = plan.cut(scoring.causal)
        parts = []
        for heads, kv_heads in _strides(q, k, stride):
            keys, values = _gathered(k, v, kv_heads, plan, cut.keys)
            given = _for_heads(scoring, sinks, heads)
            parts.append(passes.forward(q[:, heads].contiguous(), keys, values, cut.varlen, given))
        out, lse = torch.cat([part[0] for part in parts], 1), torch.cat([part[1] for part in parts])
        ctx.save_for_backward(q, k, v, sinks, out, lse)
        ctx.how = (plan, passes, stride, scoring)
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, sinks, out, lse = ctx.saved_tensors
        plan, passes, stride, scoring = ctx.how
        cut = plan.cut(scoring.causal)
        dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
        dsinks = None if sinks is None else torch.empty_like(sinks)
        for heads, kv_heads in _strides(q, k, stride):
            keys, values = _gathered(k, v, kv_heads, plan, cut.keys)
            given = cut.varlen, _for_heads(scoring, sinks, heads)
            mine = [x[:, heads].contiguous() for x in (q, out, dout)]
            grads = passes.backward(mine[2], mine[0], keys, values, mine[1], lse[heads].contiguous(), *given)
            dq[:, heads] = grads[0]
            dk[:, kv_heads], dv[:, kv_heads] = _returned(grads[1], grads[2], plan, cut.keys)
            if dsinks is not None:
                dsinks[heads] = grads[3]
        return dq, dk, dv, dsinks, None, None, None, None


def _strides(q: Tensor, k: Tensor, stride: int) -> Iterator[tuple[slice, slice]]:
    """Yield the query heads and the key heads of one turn."""
    total = k.shape[1]
    group = q.shape[1] // total
    step = stride or total
    for first in range(0, total, step):
        last = min(total, first + step)
        yield slice(first * group, last * group), slice(first, last)


def _gathered(k: Tensor, v: Tensor, heads: slice, plan: RowPlan, keys: slice) -> tuple[Tensor, Tensor]:
    """Return the keys and values of some heads that this rank's queries see; one collective for both."""
    both = all_gather(torch.cat([k[:, heads], v[:, heads]], -1), plan.group)[keys]
    return both[..., : k.shape[-1]].contiguous(), both[..., k.shape[-1] :].contiguous()


def _returned(dk: Tensor, dv: Tensor, plan: RowPlan, keys: slice) -> tuple[Tensor, Tensor]:
    """Add gradients of keys and values up at the ranks that hold them; half precision is added up in float32."""
    exact = torch.float32 if dk.dtype in _HALF else dk.dtype
    whole = torch.zeros(
        plan.world * plan.shard_length, dk.shape[1], dk.shape[2] + dv.shape[2], dtype=exact, device=dk.device
    )
    whole[keys] = torch.cat([dk, dv], -1).to(exact)
    both = reduce_scatter(whole, plan.group).to(dk.dtype)
    return both[..., : dk.shape[2]], both[..., dk.shape[2] :]


def _for_heads(scoring: Scoring, sinks: Tensor | None, heads: slice) -> Scoring:
    return replace(scoring, sinks=None if sinks is None else sinks[heads].contiguous())
