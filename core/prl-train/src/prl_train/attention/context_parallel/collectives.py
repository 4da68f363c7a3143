"""The collectives of context parallelism, over one process group.

Shapes: W ranks, S tokens of a shard. Every rank must make the same calls in the same order.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

# torch 2.13 renamed them and warns at the old names.
_all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def all_gather(local: Tensor, group: Any) -> Tensor:
    """Return [W * S, ...], the shards in the order of ranks; no gradient."""
    world = dist.get_world_size(group)
    whole = local.new_empty(world * local.shape[0], *local.shape[1:])
    _all_gather(whole, local.contiguous(), group=group)
    return whole


def reduce_scatter(whole: Tensor, group: Any) -> Tensor:
    """Add [W * S, ...] up over the ranks and return this rank's [S, ...]; no gradient."""
    world = dist.get_world_size(group)
    local = whole.new_empty(whole.shape[0] // world, *whole.shape[1:])
    _reduce_scatter(local, whole.contiguous(), group=group)
    return local


class _Gather(torch.autograd.Function):
    """Gather shards for a loss that all ranks compute alike: the gradient of a shard is its own stretch."""

    @staticmethod
    def forward(ctx: Any, local: Tensor, group: Any) -> Tensor:
        ctx.place = (dist.get_rank(group) * local.shape[0], local.shape[0])
        return all_gather(local, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        start, length = ctx.place
        return grad[start : start + length].contiguous(), None


class _HeadsForTokens(torch.autograd.Function):
    """Exchange: [S, H, D] of all heads for [W * S, H / W, D] of a share of the heads, or back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any, back: bool) -> Tensor:
        ctx.how = (group, back)
        return _exchange(x, group, back)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        group, back = ctx.how
        return _exchange(grad, group, not back), None, None


def gather(local: Tensor, group: Any) -> Tensor:
    """Return [W * S, ...] on every rank, differentiable; each rank's gradient is that of its own shard."""
    whole: Tensor = _Gather.apply(local, group)  # type: ignore[no-untyped-call]
    return whole


def split_heads(x: Tensor, group: Any) -> Tensor:
    """Return [W * S, H / W, D] of [S, H, D], differentiable."""
    whole: Tensor = _HeadsForTokens.apply(x, group, False)  # type: ignore[no-untyped-call]
    return whole


def join_heads(x: Tensor, group: Any) -> Tensor:
    """Return [S, H, D] of [W * S, H / W, D], differentiable."""
    local: Tensor = _HeadsForTokens.apply(x, group, True)  # type: ignore[no-untyped-call]
    return local


def _exchange(x: Tensor, group: Any, back: bool) -> Tensor:
    world = dist.get_world_size(group)
    # What goes to a rank lies together: its tokens on the way back, else its heads [W, S, H / W, D].
    sent = (x if back else x.reshape(x.shape[0], world, -1, x.shape[2]).transpose(0, 1)).contiguous()
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    if not back:
        return received.flatten(0, 1)
    return received.reshape(world, -1, *x.shape[1:]).transpose(0, 1).flatten(1, 2)


def pass_on(x: Tensor, group: Any) -> Tensor:
    """Send a tensor to the next rank and return that of the one before, round the group; no gradient."""
    world, rank = dist.get_world_size(group), dist.get_rank(group)
    if world == 1:
        return x
    names = [
        dist.get_global_rank(group, one % world) if group is not None else one % world for one in (rank + 1, rank - 1)
    ]
    sent, received = x.contiguous(), torch.empty_like(x, memory_format=torch.contiguous_format)
    sending = dist.P2POp(dist.isend, sent, names[0], group)
    receiving = dist.P2POp(dist.irecv, received, names[1], group)
    for work in dist.batch_isend_irecv([sending, receiving]):
        work.wait()
    return received
