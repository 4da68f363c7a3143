"""Rows over ranks: nothing lost, nothing twice, as many for each, and the work as even as it can be."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prl.types import ConfigError, MicroBatch, TrainingSample
from prl_train.data import balance, dummy_row, pack, row_cost
from prl_train.data.packing import check_row


def sample(length: int, number: int = 0) -> TrainingSample:
    return TrainingSample(
        prompt_ids=[],
        completion_ids=[1000 * number + i for i in range(length)],
        completion_mask=[True] * length,
        completion_logprobs=[-1.0] * length,
        temperatures=[1.0] * length,
    )


def rows_of(*lengths: int) -> list[MicroBatch]:
    return [pack([sample(length, number)], length)[0] for number, length in enumerate(lengths)]


def loads(shares: list[list[MicroBatch]]) -> list[int]:
    return [sum(len(row.input_ids) for row in share if any(row.loss_mask)) for share in shares]


lengths = st.lists(st.integers(2, 60), min_size=1, max_size=24)


@given(lengths, st.integers(1, 5), st.sampled_from(["tokens", "quadratic"]))
def test_every_row_goes_to_one_rank_and_all_have_as_many(sizes: list[int], ranks: int, cost: str) -> None:
    """A row twice is trained twice; a rank with a row less waits for ever."""
    rows = rows_of(*sizes)
    shares = balance(rows, ranks, cost=cost)  # type: ignore[arg-type]
    assert len(shares) == ranks
    assert {len(share) for share in shares} == {-(-len(rows) // ranks)}
    given_out = [row.input_ids for share in shares for row in share if any(row.loss_mask)]
    assert sorted(given_out) == sorted(row.input_ids for row in rows)
    extra = [row for share in shares for row in share if not any(row.loss_mask)]
    assert len(extra) == ranks * (-(-len(rows) // ranks)) - len(rows)
    for share in shares:
        costs = [row_cost(row, cost) for row in share if any(row.loss_mask)]  # type: ignore[arg-type]
        assert costs == sorted(costs, reverse=True)


@given(lengths, st.integers(1, 5))
def test_no_rank_waits_longer_than_for_one_row(sizes: list[int], ranks: int) -> None:
    rows = rows_of(*sizes)
    work = loads(balance(rows, ranks))
    assert max(work) - min(work) <= max(len(row.input_ids) for row in rows)


def test_long_rows_are_paired_with_short_ones() -> None:
    shares = balance(rows_of(8, 7, 3, 2, 6, 4), 2)
    assert loads(shares) == [15, 15]
    assert [[len(row.input_ids) for row in share] for share in shares] == [[8, 4, 3], [7, 6, 2]]


def test_quadratic_cost_counts_each_samples_own_pairs() -> None:
    (one,), (many,) = pack([sample(8192)], 8192), pack([sample(1024, n) for n in range(8)], 8192)
    assert row_cost(one) == row_cost(many) == 8192
    assert row_cost(one, "quadratic") == 2 * 8192
    assert row_cost(many, "quadratic") == 8192 + 1024


def test_rows_are_divided_to_come_out_even() -> None:
    """One row for two ranks would leave one of them idle."""
    made = [sample(length, number) for number, length in enumerate((9, 5, 4, 2))]
    assert len(pack(made, 20)) == 1
    rows = pack(made, 20, ranks=2)
    assert sorted(len(row.input_ids) for row in rows) == [9, 11]
    assert len(pack([sample(3)], 20, ranks=4)) == 1  # a sample is never divided


@given(lengths, st.integers(1, 5), st.integers(60, 100))
def test_dividing_loses_and_mixes_nothing(sizes: list[int], ranks: int, seq_len: int) -> None:
    made = [sample(length, number) for number, length in enumerate(sizes)]
    rows = pack(made, seq_len, ranks=ranks)
    documents = [row.input_ids[a:b] for row in rows for a, b in pairwise(row.cu_seqlens)]
    assert sorted(documents) == sorted(s.completion_ids for s in made)
    assert len(rows) % ranks == 0 or len(rows) == len(made)


def test_a_dummy_row_is_a_row_without_targets() -> None:
    row = dummy_row(rows_of(5))
    check_row(row)
    assert (row.loss_mask, row.cu_seqlens, row.inference_logprobs) == ([False, False], [0, 2], None)
    assert balance([], 2) == [[], []]


def test_no_ranks_is_a_clear_error() -> None:
    with pytest.raises(ConfigError, match="divided over 0 ranks"):
        balance(rows_of(3), 0)
