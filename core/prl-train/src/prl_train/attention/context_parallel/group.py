"""Context parallelism of a run: a strategy and the ranks that share rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch.distributed as dist

from prl.types import ConfigError, close_names
from prl_train.attention.bound import BoundKernel

from .plan import RowPlan, make_plan
from .ring import RingStrategy
from .ring_p2p import RingP2PStrategy
from .strategy import Strategy
from .ulysses import UlyssesStrategy

STRATEGIES: Mapping[str, Callable[[int], Strategy]] = {
    "ulysses": lambda head_stride: UlyssesStrategy(),
    "ring": RingStrategy,
    "ring-p2p": lambda head_stride: RingP2PStrategy(),
}
"""Strategies by name, in the order in which `auto` tries them: Ulysses moves less, ring takes any number of heads."""
AUTO = "auto"


@dataclass(frozen=True, slots=True)
class ContextParallel:
    """The strategies that may be used over a process group; after `settle` it is one."""

    candidates: tuple[Strategy, ...]
    group: Any
    rank: int
    world: int

    @classmethod
    def create(cls, name: str = AUTO, group: Any = None, *, head_stride: int = 1) -> ContextParallel:
        """Choose a strategy by name over a group, None for the default one.

        `head_stride` is how many key heads the ring gathers at a time, 0 for all. Raises `ConfigError` for a name that
        is none.
        """
        if name != AUTO and name not in STRATEGIES:
            raise ConfigError(
                f"there is no context parallelism {name!r}",
                where="context_parallel",
                next_step=f"{close_names(name, [AUTO, *STRATEGIES])} Names: {', '.join([AUTO, *STRATEGIES])}.".strip(),
            )
        candidates = [make(head_stride) for key, make in STRATEGIES.items() if name in (AUTO, key)]
        return cls(tuple(candidates), group, dist.get_rank(group), dist.get_world_size(group))

    def settle(self, bound: BoundKernel, *, heads: int, kv_heads: int) -> ContextParallel:
        """Return it with the first strategy that works for a kernel and a model's heads; else raise `ConfigError`."""
        obstacles = [one.obstacle(bound, heads=heads, kv_heads=kv_heads, world=self.world) for one in self.candidates]
        for one, obstacle in zip(self.candidates, obstacles, strict=True):
            if not obstacle:
                return replace(self, candidates=(one,))
        raise ConfigError(
            f"a row cannot be shared by {self.world} ranks: {'; '.join(obstacles)}",
            where=f"context_parallel = {' or '.join(one.name for one in self.candidates)}",
            next_step="choose a kernel with the feature 'lse', or a number of ranks that divides the attention heads",
        )

    @property
    def strategy(self) -> Strategy:
        """The strategy in use: the first candidate."""
        return self.candidates[0]

    def plan(self, cu_seqlens: Sequence[int], length: int, device: Any = "cpu") -> RowPlan:
        """Cut a packed row of `length` tokens for this rank; no collective."""
        return make_plan(
            self.strategy, cu_seqlens, length, device=device, group=self.group, rank=self.rank, world=self.world
        )
