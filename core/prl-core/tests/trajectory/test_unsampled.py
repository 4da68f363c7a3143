"""Turns that nobody sampled: their samples have no log-probabilities, rather than zeros that read as certainty."""

from __future__ import annotations

from typing import Any

import pytest

from prl.trajectory import interleave_rollout
from prl.types import AlignmentError, Rollout, Turn


def turn(prompt: list[int], completion: list[int], **fields: Any) -> Turn:
    values: dict[str, Any] = {"logprobs": None, "finish_reason": "stop", "weight_version": 0}
    message: Any = {"role": "assistant", "content": "x"}
    return Turn(prompt_ids=prompt, completion_ids=completion, message=message, **(values | fields))


def rollout(*turns: Turn) -> Rollout:
    return Rollout(trajectory_id="t", turns=turns, reward=1.0)


def test_a_sample_of_unsampled_turns_has_no_log_probabilities() -> None:
    [sample] = interleave_rollout(rollout(turn([1], [2, 3]), turn([1, 2, 3, 4], [5]))).samples
    assert sample.completion_logprobs is None
    assert sample.completion_ids == [2, 3, 4, 5]
    assert sample.completion_mask == [True, True, False, True]


def test_a_turns_own_mask_says_what_a_model_samples_of_it() -> None:
    masked = turn([1, 2, 3, 4, 5], [6, 7, 8], completion_mask=[False, True, True])
    [sample] = interleave_rollout(rollout(turn([1], [2, 3], completion_mask=[True, False]), masked)).samples
    assert sample.completion_mask == [True, False, False, False, False, True, True]


def test_a_mask_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(AlignmentError, match="1 entries for 2 tokens"):
        interleave_rollout(rollout(turn([1], [2, 3], completion_mask=[True])))


def test_sampled_and_unsampled_turns_cannot_share_a_sample() -> None:
    """Half a list of log-probabilities has no meaning to any loss."""
    sampled = turn([1, 2, 3, 4], [5], logprobs=[-0.5])
    with pytest.raises(AlignmentError, match="others have none"):
        interleave_rollout(rollout(turn([1], [2, 3]), sampled))
    apart = interleave_rollout(rollout(turn([1], [2, 3]), turn([9], [5], logprobs=[-0.5]))).samples
    assert [sample.completion_logprobs for sample in apart] == [None, [-0.5]]
