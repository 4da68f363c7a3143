"""Context parallelism: one packed row over the ranks of a process group, through any kernel plugin.

    from prl_train.attention.context_parallel import ContextParallel

    cp = ContextParallel.create("ring", group)                  # "ulysses", "ring", "ring-p2p" or "auto"
    cp = cp.settle(bound, heads=Hq, kv_heads=Hkv)               # once a model: ConfigError where it cannot work
    plan = cp.plan(batch.cu_seqlens, len(batch.input_ids), device)   # once a micro-batch: no collective
    ids = plan.shard(torch.tensor(batch.input_ids))             # [T] -> [S], S = plan.shard_length, padded with 0
    positions = plan.shard(torch.tensor(batch.position_ids))
    out = model(input_ids=ids[None], position_ids=positions[None], packed=plan.call(bound), use_cache=False)
    full = plan.gather(per_token)                               # [S, ...] -> [T, ...] on every rank, differentiable

Rank r holds tokens [r * S, (r + 1) * S) of the row padded to W * S tokens (W ranks). What a token predicts must be
shifted before the row is cut: `plan.shard(shift_labels(ids, cu_seqlens))`. For chosen tokens of the whole row,
`which, local = plan.owned(positions)` says which of them this rank holds and where they lie in its shard.

`gather` is for a loss that every rank computes alike from the whole row: its backward hands each rank the gradient of
its own shard, and adds nothing up. The gradient of a parameter on one rank is then that of its shard's tokens; the sum
over the ranks of the group is the gradient of one process (undo any averaging over the group).
"""

from .group import STRATEGIES, ContextParallel
from .plan import Cut, RowPlan, cut_row, make_plan, shift_labels
from .ring import RingStrategy
from .ring_p2p import RingP2PStrategy
from .strategy import Strategy
from .ulysses import UlyssesStrategy

__all__ = [
    "STRATEGIES",
    "ContextParallel",
    "Cut",
    "RingP2PStrategy",
    "RingStrategy",
    "RowPlan",
    "Strategy",
    "UlyssesStrategy",
    "cut_row",
    "make_plan",
    "shift_labels",
]
