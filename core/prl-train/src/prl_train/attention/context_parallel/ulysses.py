"""Each rank attends the whole row for a share of the heads; tokens and heads change places by all-to-all.

Works with any differentiable kernel, and every option. Shapes: S tokens of a shard, W ranks, T = W * S.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from prl_train.attention.bound import BoundKernel

from .collectives import join_heads, split_heads

if TYPE_CHECKING:
    from .plan import RowPlan


@dataclass(frozen=True, slots=True)
class UlyssesStrategy:
    """All-to-all over heads. Where there are fewer key heads than ranks, each is sent to all that need it."""

    name: str = "ulysses"

    def obstacle(self, bound: BoundKernel, *, heads: int, kv_heads: int, world: int) -> str:
        """Say why it cannot work: every rank needs as many query heads as the next."""
        return "" if heads % world == 0 else f"{heads} attention heads cannot be shared by {world} ranks"

    def attend(self, plan: RowPlan, bound: BoundKernel, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        """Attend for this rank's queries; result [S, Hq, Dv]."""
        copies = copies_of_keys(q.shape[1], k.shape[1], plan.world)
        if copies > 1:
            k, v = (x.repeat_interleave(copies, dim=1) for x in (k, v))
        if options.get("sinks") is not None:
            share = q.shape[1] // plan.world
            options["sinks"] = options["sinks"][plan.rank * share : (plan.rank + 1) * share]
        attended = bound.attend(
            *(split_heads(x, plan.group) for x in (q, k, v)),
            cu_seqlens=plan.whole.cu_seqlens_q,
            max_seqlen=plan.whole.max_seqlen_q,
            **options,
        )
        return join_heads(attended, plan.group)


def copies_of_keys(heads: int, kv_heads: int, world: int) -> int:
    """Return the fewest copies of each key head with which every rank holds those of its query heads."""
    group = heads // kv_heads
    return next(n for n in range(1, group + 1) if group % n == 0 and kv_heads * n % world == 0)
