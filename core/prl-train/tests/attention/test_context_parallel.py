"""Context parallelism: two and four processes attend as one, and what cannot be shared is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from prl.types import ConfigError
from prl_train.attention.bound import bind
from prl_train.attention.context_parallel import (
    ContextParallel,
    RingP2PStrategy,
    RingStrategy,
    Strategy,
    UlyssesStrategy,
    cut_row,
    make_plan,
    shift_labels,
)
from prl_train.attention.context_parallel.ulysses import copies_of_keys
from prl_train.attention.sdpa import sdpa

RANKS = Path(__file__).with_name("ranks.py")
CASES = 96


@pytest.mark.parametrize("world", [2, 4])
def test_ranks_that_share_a_row_equal_one_process(world: int) -> None:
    """Long rows are trained along other values or gradients than short ones."""
    done = subprocess.run(
        [sys.executable, str(RANKS), str(world)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout)
    assert {name: worst for name, worst in found.items() if not worst <= 1e-5} == {}
    assert len(found) == CASES
    assert {"ring refuses a window", "ring-p2p refuses a window"} <= found.keys()


@pytest.mark.parametrize(
    ("rank", "queries", "keys", "counted"),
    [
        (0, [0, 3, 6], [0, 3, 6], slice(0, 6)),
        (1, [0, 4, 6], [0, 7, 9], slice(3, 12)),
        (2, [0, 5, 6], [0, 7, 8], slice(10, 18)),
    ],
)
def test_a_document_that_straddles_a_border_keeps_its_earlier_keys(
    rank: int, queries: list[int], keys: list[int], counted: slice
) -> None:
    """A rank whose shard begins inside a document attends only to the part that it holds."""
    borders = [0, 3, 10, 10, 17, 18]
    cut = cut_row(borders, rank * 6, rank * 6 + 6, "cpu", causal=True)
    assert (cut.varlen.cu_seqlens_q.tolist(), cut.varlen.cu_seqlens_k.tolist(), cut.keys) == (queries, keys, counted)
    longest = [max(b - a for a, b in pairwise(counts)) for counts in (queries, keys)]
    assert [cut.varlen.max_seqlen_q, cut.varlen.max_seqlen_k] == longest


def test_a_row_that_the_ranks_do_not_divide_is_padded_as_a_document_of_its_own() -> None:
    """Uneven shards end in a deadlock; padding inside a document changes it."""
    plan = make_plan(UlyssesStrategy(), [0, 4, 5], 7, device="cpu", group=None, rank=2, world=3)
    assert (plan.shard_length, plan.whole.cu_seqlens_q.tolist()) == (3, [0, 4, 5, 7, 9])
    assert plan.shard(torch.arange(7), fill=-1).tolist() == [6, -1, -1]
    assert plan.shard(torch.ones(7, 2)).tolist() == [[1, 1], [0, 0], [0, 0]]
    which, local = plan.owned(torch.tensor([1, 6, 5]))
    assert (which.tolist(), local.tolist()) == ([1], [0])


def test_a_stream_of_another_row_is_refused() -> None:
    plan = make_plan(UlyssesStrategy(), [0, 4], 4, device="cpu", group=None, rank=0, world=2)
    with pytest.raises(ConfigError, match="a stream of 5 tokens does not belong to a row of 4"):
        plan.shard(torch.zeros(5))


@pytest.mark.parametrize("borders", [[], [1, 4], [0, 3, 2], [0, 9]])
def test_borders_that_are_no_row_are_refused(borders: list[int]) -> None:
    with pytest.raises(ConfigError, match="do not lie in a row of 4 tokens"):
        make_plan(UlyssesStrategy(), borders, 4, device="cpu", group=None, rank=0, world=2)


def test_labels_are_shifted_within_documents() -> None:
    """A document's last token is trained to predict the next document's first."""
    ids = torch.tensor([5, 6, 7, 8, 9, 0, 0])
    assert shift_labels(ids, [0, 3, 3, 5]).tolist() == [6, 7, -100, 9, -100, -100, -100]


@pytest.mark.parametrize(
    ("heads", "kv_heads", "world", "copies"), [(8, 8, 4, 1), (8, 2, 4, 2), (8, 1, 4, 4), (12, 6, 4, 2), (12, 3, 4, 4)]
)
def test_each_key_head_goes_to_all_ranks_that_need_it(heads: int, kv_heads: int, world: int, copies: int) -> None:
    assert copies_of_keys(heads, kv_heads, world) == copies


def context(*candidates: Strategy, world: int) -> ContextParallel:
    return ContextParallel(candidates, None, 0, world)


def test_the_first_strategy_that_works_is_taken() -> None:
    both = (UlyssesStrategy(), RingStrategy())
    with_lse, without = bind("sdpa", sdpa, ("lse", "sinks")), bind("plain", sdpa, ("gqa",))
    assert context(*both, world=4).settle(with_lse, heads=8, kv_heads=2).strategy.name == "ulysses"
    assert context(*both, world=3).settle(with_lse, heads=8, kv_heads=2).strategy.name == "ring"
    with pytest.raises(ConfigError) as caught:
        context(*both, world=3).settle(without, heads=8, kv_heads=2)
    assert caught.value.what == (
        "a row cannot be shared by 3 ranks: 8 attention heads cannot be shared by 3 ranks; "
        "the attention kernel 'plain' has no 'lse'"
    )


def test_a_ring_from_rank_to_rank_needs_attention_without_a_causal_mask() -> None:
    """Another rank's keys are all in the past: a kernel that is causal only would hide some of them."""
    causal_only = bind("causal", sdpa, ("lse", "sinks"))
    with pytest.raises(ConfigError, match="the attention kernel 'causal' has no 'non_causal'"):
        context(RingP2PStrategy(), world=2).settle(causal_only, heads=8, kv_heads=2)


def test_an_unknown_strategy_is_told_with_the_close_name() -> None:
    with pytest.raises(ConfigError, match="no context parallelism 'ulises'") as caught:
        ContextParallel.create("ulises")
    assert "ulysses" in caught.value.next_step
