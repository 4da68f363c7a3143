"""Divide packed rows over ranks: the same number for each, and as nearly the same work as may be."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

from prl.types import ConfigError, MicroBatch

Cost = Literal["tokens", "quadratic"]


def row_cost(batch: MicroBatch, cost: Cost = "tokens") -> float:
    """Return the work of a row: its tokens, or with "quadratic" the attended pairs too (each sample on its own)."""
    tokens = float(len(batch.input_ids))
    if cost == "tokens":
        return tokens
    return tokens + sum((end - start) ** 2 for start, end in pairwise(batch.cu_seqlens)) / _PAIRS_A_TOKEN


_PAIRS_A_TOKEN = 8192.0
"""Attended pairs that cost about as much as one token's share of the matrices, in models of a few billion weights."""


def balance(rows: Sequence[MicroBatch], ranks: int, *, cost: Cost = "tokens") -> list[list[MicroBatch]]:
    """Return each rank's rows: every row once, dummy rows (no target) where they do not come out even.

    Longest first, each row goes to the least loaded rank that still has a place. A rank's rows are sorted by falling
    cost, so that ranks which wait for each other after every row are busy with rows of like size. Every rank that
    computes this from the same rows gets the same answer.
    """
    check_ranks(ranks)
    places = -(-len(rows) // ranks)
    costs = [row_cost(row, cost) for row in rows]
    assigned: list[list[int]] = [[] for _ in range(ranks)]
    load = [0.0] * ranks
    for index in sorted(range(len(rows)), key=lambda i: -costs[i]):
        rank = min((r for r in range(ranks) if len(assigned[r]) < places), key=lambda r: (load[r], r))
        assigned[rank].append(index)
        load[rank] += costs[index]
    return [[rows[i] for i in mine] + [dummy_row(rows) for _ in range(places - len(mine))] for mine in assigned]


def dummy_row(like: Sequence[MicroBatch]) -> MicroBatch:
    """Return a row of two tokens without a target: a forward and a backward pass that add nothing."""
    token = like[0].input_ids[0] if like else 0
    return MicroBatch(
        input_ids=[token, token],
        position_ids=[0, 1],
        cu_seqlens=[0, 2],
        loss_mask=[False, False],
        advantages=[0.0, 0.0],
        inference_logprobs=None,
        temperatures=[1.0, 1.0],
    )


def check_ranks(ranks: int) -> None:
    """Raise `ConfigError` where there is nobody to divide rows over."""
    if ranks < 1:
        raise ConfigError(f"rows cannot be divided over {ranks} ranks", where="ranks", next_step="use ranks >= 1")
