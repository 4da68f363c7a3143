"""Fitting and packing must not change any sample's targets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prl.types import AlignmentError, ConfigError, MicroBatch, TrainingSample
from prl_train.data import SftSample, fit_sample, fit_samples, pack, pack_supervised, pack_supervised_batch
from prl_train.data.packing import check_row


def sample(ids: list[int], mask: list[int], *, prompt: int = 0, **fields: Any) -> TrainingSample:
    completion = len(ids) - prompt
    defaults: dict[str, Any] = {
        "completion_logprobs": [-0.01 * token for token in ids[prompt:]],
        "temperatures": [1.0] * completion,
        "advantage": 1.0,
    }
    return TrainingSample(
        prompt_ids=ids[:prompt],
        completion_ids=ids[prompt:],
        completion_mask=[bool(flag) for flag in mask[prompt:]],
        **(defaults | fields),
    )


def pairs(batch: MicroBatch) -> list[tuple[int, int]]:
    """Return every (context, target) pair that enters the loss."""
    return [
        (batch.input_ids[i - 1], batch.input_ids[i])
        for i in range(len(batch.input_ids))
        if batch.loss_mask[i] and i > 0
    ]


def test_a_sample_cut_to_no_target_is_dropped_and_counted_the_other_is_cut_in_every_stream() -> None:
    ids = [1, 2, 3, 4, 5, 6]
    late = sample(ids, [0, 0, 0, 0, 1, 1], prompt=1, completion_logprobs=[0.0, 0.0, 0.0, -0.2, -0.3])
    early = sample(ids, [0, 1, 1, 0, 0, 1], prompt=1, completion_logprobs=[-0.1, -0.2, 0.0, 0.0, -0.4])
    fitted = fit_samples([late, early], 4)
    assert (fitted.dropped, fitted.truncated) == (1, 1)
    (kept,) = fitted.samples
    assert kept.prompt_ids + kept.completion_ids == [1, 2, 3, 4]
    assert kept.completion_mask == [True, True, False]
    assert kept.completion_logprobs == [-0.1, -0.2, 0.0]
    assert kept.temperatures == [1.0, 1.0, 1.0]


def test_a_cut_inside_the_prompt_leaves_nothing_to_train() -> None:
    assert fit_sample(sample([1, 2, 3, 4], [0, 0, 0, 1], prompt=3), 2).sample is None


def test_optional_streams_are_cut_with_the_tokens() -> None:
    whole = sample(
        [1, 2, 3, 4],
        [0, 0, 1, 1],
        prompt=2,
        teacher_logprobs=[0.0, -1.0, -2.0, -3.0],
        routed_experts=[[1], [2], [3], [4]],
    )
    cut = fit_sample(whole, 3).sample
    assert cut is not None
    assert (cut.teacher_logprobs, cut.routed_experts) == ([0.0, -1.0, -2.0], [[1], [2], [3]])


def test_a_sample_with_images_is_dropped_rather_than_cut() -> None:
    result = fit_sample(sample([1, 2, 3], [0, 1, 1], prompt=1, pixel_values=[0.5], image_grid_thw=[[1, 1, 1]]), 2)
    assert (result.sample, result.is_truncated) == (None, True)


def test_a_stream_of_another_length_is_an_error() -> None:
    with pytest.raises(AlignmentError, match="teacher_logprobs has 2 entries for 3 tokens"):
        pack([sample([1, 2, 3], [0, 1, 1], prompt=1, teacher_logprobs=[0.0, -1.0])], 8)
    with pytest.raises(AlignmentError, match="temperatures has 1 entries for 2 tokens"):
        fit_sample(sample([1, 2, 3], [0, 1, 1], prompt=1, temperatures=[1.0]), 8)


def test_packing_keeps_boundaries_positions_and_targets() -> None:
    """No pair crosses samples, the end token is input and target, positions restart, padding is nobody's."""
    batch = pack_supervised(
        [SftSample([1, 2, 3, 99], [False, False, True, True]), SftSample([5, 6, 99], [False, True, True])], pad_to=8
    )
    assert batch.input_ids == [1, 2, 3, 99, 5, 6, 99, 0]
    assert batch.position_ids == [0, 1, 2, 3, 0, 1, 2, 0]
    assert batch.cu_seqlens == [0, 4, 7]
    assert pairs(batch) == [(2, 3), (3, 99), (5, 6), (6, 99)]


def test_rl_packing_keeps_boundaries_positions_and_targets() -> None:
    (batch,) = pack(
        [sample([5, 6, 99], [0, 1, 1], prompt=1), sample([1, 2, 3, 99], [0, 0, 1, 1], prompt=2, advantage=-2.0)],
        8,
        pad_to=8,
    )
    assert batch.input_ids == [1, 2, 3, 99, 5, 6, 99, 0]
    assert batch.cu_seqlens == [0, 4, 7]
    assert pairs(batch) == [(2, 3), (3, 99), (5, 6), (6, 99)]
    assert batch.advantages == [0.0, 0.0, -2.0, -2.0, 0.0, 1.0, 1.0, 0.0]
    assert batch.inference_logprobs == pytest.approx([0.0, 0.0, -0.03, -0.99, 0.0, -0.06, -0.99, 0.0])


def test_the_first_completion_token_is_a_target() -> None:
    """Slicing the mask instead of shifting it loses the token that decides how an answer starts."""
    (batch,) = pack([sample([7, 8, 9, 40, 41, 42], [0, 0, 0, 1, 1, 1], prompt=3)], 6)
    assert pairs(batch) == [(9, 40), (40, 41), (41, 42)]


def test_a_documents_first_token_is_never_a_target() -> None:
    batch = pack_supervised([SftSample([1, 2], [True, True]), SftSample([3, 4], [True, True])])
    assert pairs(batch) == [(1, 2), (3, 4)]


def test_a_sample_longer_than_a_row_is_refused_with_the_way_out() -> None:
    with pytest.raises(ConfigError, match="a sample of 3 tokens cannot be packed into rows of 2") as caught:
        pack([sample([1, 2, 3], [0, 1, 1])], 2)
    assert "fit_samples" in caught.value.next_step


def test_samples_with_and_without_a_stream_never_share_a_row() -> None:
    """Filling in a missing stream would train on invented numbers; skipping it would shift the rest of the row."""
    plain = sample([1, 2], [0, 1])
    rows = pack([plain, replace(plain, teacher_logprobs=[0.0, -1.0]), plain], 100)
    assert [(len(row.cu_seqlens) - 1, row.teacher_logprobs) for row in rows] == [(2, None), (1, [0.0, -1.0])]


def test_samples_that_nobody_sampled_have_rows_of_their_own() -> None:
    """A teacher's texts have no log-probabilities of the engine, and zeros would be certainties."""
    plain = sample([1, 2], [0, 1])
    rows = pack([plain, replace(plain, completion_logprobs=None)], 100)
    assert [row.inference_logprobs for row in rows] == [[-0.01, -0.02], None]
    long = fit_sample(sample([1, 2, 3], [0, 1, 1], completion_logprobs=None), 2)
    assert long.sample is not None
    assert (long.sample.completion_ids, long.sample.completion_logprobs) == ([1, 2], None)


def test_routing_of_padding_is_no_route() -> None:
    (row,) = pack([sample([1, 2], [0, 1], routed_experts=[[[4, 5]], [[6, 7]]])], 4, pad_to=4)
    assert row.routed_experts.tolist() == [[[4, 5]], [[6, 7]], [[-1, -1]], [[-1, -1]]]


def test_routing_of_two_models_is_refused() -> None:
    with pytest.raises(AlignmentError, match="shapes"):
        pack([sample([1], [1], routed_experts=[[[4, 5]]]), sample([1], [1], routed_experts=[[[4]]])], 4)


def test_first_fit_decreasing_fills_rows() -> None:
    rows = pack([sample([0] * length, [1] * length) for length in (3, 5, 2, 4, 6)], 10)
    assert [row.cu_seqlens for row in rows] == [[0, 6, 10], [0, 5, 8, 10]]


def test_supervised_batches_fill_rows_too() -> None:
    rows = pack_supervised_batch([SftSample([0] * n, [True] * n) for n in (3, 5, 2, 4, 6)], 10)
    assert [row.cu_seqlens for row in rows] == [[0, 6, 10], [0, 5, 8, 10]]


def test_a_row_with_a_short_stream_is_refused() -> None:
    (row,) = pack([sample([1, 2], [0, 1])], 4)
    with pytest.raises(AlignmentError, match="advantages has 1 entries for 2 tokens"):
        check_row(replace(row, advantages=[0.0]))
    with pytest.raises(AlignmentError, match="cu_seqlens"):
        check_row(replace(row, cu_seqlens=[0, 3]))


lengths = st.lists(st.integers(1, 12), min_size=1, max_size=20)


@given(lengths, st.integers(12, 40), st.booleans())
def test_packing_loses_and_mixes_nothing(lengths: list[int], seq_len: int, padded: bool) -> None:
    samples = [sample([100 * n + i for i in range(length)], [1] * length) for n, length in enumerate(lengths)]
    rows = pack(samples, seq_len, pad_to=seq_len if padded else None)
    documents = []
    for row in rows:
        assert len(row.input_ids) == seq_len if padded else len(row.input_ids) <= seq_len
        for start, end in zip(row.cu_seqlens, row.cu_seqlens[1:], strict=False):
            documents.append(row.input_ids[start:end])
            assert row.position_ids[start:end] == list(range(end - start))
            assert row.loss_mask[start:end] == [False] + [True] * (end - start - 1)
        assert not any(row.loss_mask[row.cu_seqlens[-1] :])
    assert sorted(documents) == sorted(list(s.completion_ids) for s in samples)


@pytest.mark.parametrize(
    ("place", "told"), [(3, "token 3, the first of a sample, is a target"), (5, "a token of the padding is a target")]
)
def test_a_target_that_nothing_predicts_is_refused(place: int, told: str) -> None:
    """It would be scored behind the last token of another sample, or of the row."""
    batch = pack_supervised([SftSample([1, 2, 3], [True] * 3), SftSample([4, 5], [True] * 2)], pad_to=6)
    check_row(batch)
    wrong = replace(batch, loss_mask=[flag or index == place for index, flag in enumerate(batch.loss_mask)])
    with pytest.raises(AlignmentError, match=told) as caught:
        check_row(wrong)
    assert (caught.value.where, bool(caught.value.next_step)) == ("loss_mask of a packed row", True)


def test_an_empty_supervised_sample_takes_no_others_target() -> None:
    batch = pack_supervised([SftSample([1, 2], [True] * 2), SftSample([], []), SftSample([3, 4], [True] * 2)])
    assert (batch.cu_seqlens, batch.loss_mask) == ([0, 2, 2, 4], [False, True, False, True])
    assert pack_supervised([SftSample([1, 2], [True] * 2), SftSample([], [])]).loss_mask == [False, True]
