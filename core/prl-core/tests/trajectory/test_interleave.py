"""Interleaving: what the trainer gets must be exactly what was sent and sampled."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prl.trajectory import interleave_rollout
from prl.types import AlignmentError, BreakCause, PromptIds, Rollout, Turn


def turn(prompt: Sequence[int], completion: list[int], **fields: Any) -> Turn:
    """Return a turn whose log-probabilities are minus the token ids, so that a shift is seen."""
    defaults: dict[str, Any] = {
        "logprobs": [-float(token) for token in completion],
        "finish_reason": "stop",
        "weight_version": 3,
        "message": {"role": "assistant", "content": ""},
    }
    return Turn(prompt_ids=prompt, completion_ids=completion, **(defaults | fields))


def rollout(*turns: Turn, **fields: Any) -> Rollout:
    return Rollout(**({"trajectory_id": "t", "turns": turns, "reward": 1.0, "environment": "game"} | fields))


def test_bridged_turns_become_one_sample_with_exact_ids_masks_and_logprobs() -> None:
    result = interleave_rollout(
        rollout(turn([1, 2], [3, 4]), turn([1, 2, 3, 4, 5], [6], temperature=0.5, weight_version=2))
    )
    (sample,) = result.samples
    assert (sample.prompt_ids, sample.completion_ids) == ([1, 2], [3, 4, 5, 6])
    assert sample.completion_mask == [True, True, False, True]
    assert sample.completion_logprobs == [-3.0, -4.0, 0.0, -6.0]
    assert sample.temperatures == [1.0, 1.0, 0.5, 0.5]
    assert (sample.reward, sample.weight_version, sample.environment) == (1.0, 2, "game")
    assert result.breaks == []
    assert result.warnings == []


def test_a_turn_extends_the_longest_matching_sample() -> None:
    """A rolled-back turn that samples the same tokens again must not have its continuation torn away."""
    result = interleave_rollout(
        rollout(
            turn([21, 22], [31, 32]),
            turn([21, 22, 31, 32, 23], [33]),
            turn([21, 22], [31, 32, 23, 33, 34]),
            turn([21, 22, 31, 32, 23, 33, 34, 24], [35]),
        )
    )
    assert [sample.prompt_ids + sample.completion_ids for sample in result.samples] == [
        [21, 22, 31, 32, 23, 33],
        [21, 22, 31, 32, 23, 33, 34, 24, 35],
    ]
    assert [sample.completion_mask for sample in result.samples] == [
        [True, True, False, True],
        [True, True, True, True, True, False, True],
    ]
    assert result.turns == [[0, 1], [2, 3]]
    assert [entry.split(":")[0] for entry in result.warnings] == ["ambiguous prefix at step 3"]
    assert [(entry.turn, entry.cause, entry.position) for entry in result.breaks] == [
        (2, BreakCause.HISTORY_REWRITTEN, 2)
    ]


def test_an_errored_rollout_trains_nothing_but_keeps_its_samples() -> None:
    (sample,) = interleave_rollout(rollout(turn([1], [2, 3]), error="the tool crashed")).samples
    assert sample.completion_ids == [2, 3]
    assert sample.completion_mask == [False, False]


def test_a_truncated_rollout_stays_trainable() -> None:
    (sample,) = interleave_rollout(rollout(turn([1], [2, 3]), stop_reason="prompt_too_long", is_truncated=True)).samples
    assert sample.completion_mask == [True, True]


def test_a_missing_logprob_is_an_error_not_a_shift() -> None:
    with pytest.raises(AlignmentError, match="1 log-probabilities for 2 sampled tokens") as caught:
        interleave_rollout(rollout(turn([1], [2, 3], logprobs=[-0.5])))
    assert caught.value.where == "turn 0 of trajectory 't'"


def test_a_turn_without_prompt_ids_is_an_error() -> None:
    with pytest.raises(AlignmentError, match="no prompt ids"):
        interleave_rollout(rollout(turn([], [2])))


def rows(*names: int) -> list[list[list[int]]]:
    """Return routing rows of one layer and one expert."""
    return [[[name]] for name in names]


def test_the_padded_routing_row_is_replaced_by_the_next_turns_real_row() -> None:
    """A zero row at a sampled token would train another expert than the one that was used."""
    (sample,) = interleave_rollout(
        rollout(
            turn([1, 2, 3], [4, 5], routed_experts=rows(11, 12, 13, 14)),
            turn([1, 2, 3, 4, 5, 6], [7], routed_experts=rows(21, 22, 23, 24, 25, 26)),
        )
    ).samples
    assert sample.routed_experts == rows(11, 12, 13, 14, 25, 26, -1)
    assert len(sample.routed_experts) == len(sample)


def test_routing_with_one_row_per_token_needs_no_padding() -> None:
    (sample,) = interleave_rollout(rollout(turn([1, 2], [3], routed_experts=rows(7, 8, 9)))).samples
    assert sample.routed_experts == rows(7, 8, 9)


def test_the_row_that_no_pass_produced_has_no_route_in_arrays_without_a_sign() -> None:
    """Servers send routing as uint8 where experts are few: -1 is no uint8, and 255 would be an expert."""
    reported = [array("B", [3]), array("B", [5])]
    (sample,) = interleave_rollout(rollout(turn([1, 2], [3], routed_experts=reported))).samples
    assert [list(row) for row in sample.routed_experts] == [[3], [5], [-1]]


@pytest.mark.parametrize("reported", [rows(1), rows(1, 2, 3, 4, 5), []])
def test_more_than_one_missing_routing_row_is_an_error(reported: list[Any]) -> None:
    with pytest.raises(AlignmentError, match="routing rows for 4 tokens"):
        interleave_rollout(rollout(turn([1, 2], [3, 4], routed_experts=reported)))


def test_routing_on_some_turns_only_is_an_error() -> None:
    with pytest.raises(AlignmentError, match="carry routed experts and others do not"):
        interleave_rollout(rollout(turn([1], [2], routed_experts=rows(1)), turn([1, 2, 3], [4])))


ids = st.lists(st.integers(0, 3), min_size=1, max_size=4)


@given(st.lists(st.tuples(st.integers(0, 6), ids, ids), min_size=1, max_size=7), st.booleans())
def test_every_sampled_token_is_a_target_once_at_its_own_place(
    steps: list[tuple[int, list[int], list[int]]], shares: bool
) -> None:
    """Whatever branches a rollout takes, each turn's completion lies behind its own prompt, and nothing is lost."""
    turns: list[Turn] = []
    for choice, new_prompt, completion in steps:
        base = turns[choice % len(turns)] if turns and choice else None
        history = PromptIds(base.prompt_ids).extended(base.completion_ids) if base else PromptIds()
        prompt = history.extended(new_prompt)
        turns.append(turn(prompt if shares else list(prompt), completion))
    result = interleave_rollout(rollout(*turns))
    assert sorted(number for numbers in result.turns for number in numbers) == list(range(len(turns)))
    assert len(result.breaks) == len(result.samples) - 1
    for sample, numbers in zip(result.samples, result.turns, strict=True):
        whole = sample.prompt_ids + sample.completion_ids
        mask = [False] * len(sample.prompt_ids) + sample.completion_mask
        expected = [False] * len(whole)
        for number in numbers:
            prompt, completion = turns[number].prompt_ids, turns[number].completion_ids
            assert whole[: len(prompt) + len(completion)] == [*prompt, *completion]
            expected[len(prompt) : len(prompt) + len(completion)] = [True] * len(completion)
        assert mask == expected
