"""Which tokens of a packed row a rank holds, and where the documents lie for it.

Shapes: T tokens of the row, W ranks, S = ceil(T / W) tokens of a shard, N documents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from prl.contracts import Varlen
from prl.types import ConfigError
from prl_train.attention.bound import BoundKernel, PackedCall

from .collectives import gather
from .strategy import Strategy


@dataclass(frozen=True, slots=True)
class Cut:
    """What one rank's queries see. `keys` is the stretch of the whole row's keys that `varlen` counts from."""

    varlen: Varlen
    keys: slice


@dataclass(frozen=True, slots=True)
class RowPlan:
    """One micro-batch's row, cut for one rank. `whole` are the padded row's documents, padding being one of its own."""

    strategy: Strategy
    group: Any
    rank: int
    world: int
    length: int
    shard_length: int
    borders: tuple[int, ...]
    whole: Varlen
    causal_cut: Cut
    full_cut: Cut

    def shard(self, values: Tensor, fill: float = 0) -> Tensor:
        """Return this rank's [S, ...] of [T, ...], padded with `fill`."""
        if values.shape[0] != self.length:
            raise ConfigError(
                f"a stream of {values.shape[0]} tokens does not belong to a row of {self.length}",
                where="context parallelism",
                next_step="shard every stream of the micro-batch with the plan of that micro-batch",
            )
        start = self.rank * self.shard_length
        held = values[start : start + self.shard_length]
        missing = self.shard_length - held.shape[0]
        if not missing:
            return held
        return torch.cat([held, held.new_full((missing, *held.shape[1:]), fill)])

    def gather(self, local: Tensor) -> Tensor:
        """Return [T, ...] of every rank's [S, ...], without the padding; differentiable, see the package."""
        return gather(local, self.group)[: self.length]

    def owned(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return which of the row's positions [M] this rank holds, and their places in its shard; both int64."""
        local = positions.long() - self.rank * self.shard_length
        which = ((local >= 0) & (local < self.shard_length)).nonzero()[:, 0]
        return which, local[which]

    def call(self, bound: BoundKernel) -> PackedCall:
        """Return what a model's attention layers get: `model(packed=plan.call(bound), ...)`."""
        return PackedCall(bound, self.whole.cu_seqlens_q, self.whole.max_seqlen_q, context=self)

    def cut(self, causal: bool) -> Cut:
        """Return what this rank's queries see, under a causal mask or in full."""
        return self.causal_cut if causal else self.full_cut

    def attend(self, bound: BoundKernel, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        """Attend for this rank's queries; q [S, Hq, D], k and v [S, Hkv, D], options of an `AttentionKernel`."""
        return self.strategy.attend(self, bound, q, k, v, **options)


def make_plan(
    strategy: Strategy, cu_seqlens: Sequence[int], length: int, *, device: Any, group: Any, rank: int, world: int
) -> RowPlan:
    """Cut a row of `length` tokens. `cu_seqlens` counts from 0, and may end before the row does."""
    borders = list(cu_seqlens)
    if not borders or borders[0] != 0 or borders[-1] > length or any(a > b for a, b in pairwise(borders)):
        raise ConfigError(
            f"the documents' borders {borders} do not lie in a row of {length} tokens",
            where="context parallelism",
            next_step="give cu_seqlens from 0 upwards, at most the row's length",
        )
    shard_length = -(-length // world) or 1
    borders += [end for end in dict.fromkeys((length, shard_length * world)) if end > borders[-1]]
    longest = max(end - start for start, end in pairwise(borders))
    whole = torch.tensor(borders, dtype=torch.int32, device=device)
    start, stop = rank * shard_length, (rank + 1) * shard_length
    return RowPlan(
        strategy=strategy,
        group=group,
        rank=rank,
        world=world,
        length=length,
        shard_length=shard_length,
        borders=tuple(borders),
        whole=Varlen(whole, whole, longest, longest),
        causal_cut=cut_row(borders, start, stop, device, causal=True),
        full_cut=cut_row(borders, start, stop, device, causal=False),
    )


def cut_row(borders: Sequence[int], start: int, stop: int, device: Any, *, causal: bool) -> Cut:
    """Return what the queries [start, stop) of a row see; documents that have none there are left out.

    Under a causal mask the keys end where the queries do: a document of which the stretch holds a later part has more
    keys than queries, and bottom-right alignment gives them what the whole document would.
    """
    inside = [(a, b) for a, b in pairwise(borders) if a < stop and b > start and b > a]
    first_key = inside[0][0]
    queries, keys = [0], [0]
    for _, end in inside:
        queries.append(min(end, stop) - start)
        keys.append((min(end, stop) if causal else end) - first_key)
    longest = [max(end - begin for begin, end in pairwise(counts)) for counts in (queries, keys)]
    cu_q, cu_k = (torch.tensor(counts, dtype=torch.int32, device=device) for counts in (queries, keys))
    return Cut(Varlen(cu_q, cu_k, *longest), slice(first_key, first_key + keys[-1]))


def shift_labels(ids: Tensor, cu_seqlens: Sequence[int], ignore: int = -100) -> Tensor:
    """Return what each token of a row predicts, [T]; `ignore` at the last token of a document and in the padding.

    Shift before the row is cut: the label of a shard's last token is the next rank's first token.
    """
    labels = torch.full_like(ids, ignore)
    labels[:-1] = ids[1:]
    for end in cu_seqlens[1:]:
        if end > 0:
            labels[end - 1] = ignore
    labels[cu_seqlens[-1] :] = ignore
    return labels
