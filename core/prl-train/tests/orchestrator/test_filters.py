"""Filters: what they drop, what they remember, and what becomes of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from prl.contracts import ExampleHistory, RolloutFilter
from prl.types import Rollout, Turn
from prl_train.filters import difficulty, length, repetition
from prl_train.orchestrator.filtering import FilterSet
from prl_train.run import RunError


def rollout(
    reward: float = 0.0, *, sampled: Sequence[int] = (1,), prompt: int = 1, example: str = "e", **fields: Any
) -> Rollout:
    turn = Turn(
        prompt_ids=[0] * prompt,
        completion_ids=list(sampled),
        logprobs=[0.0] * len(sampled),
        finish_reason="stop",
        weight_version=0,
        message={"role": "assistant", "content": ""},
    )
    return Rollout(trajectory_id="t", turns=(turn,), reward=reward, example_id=example, **fields)


def by_difficulty(**options: Any) -> difficulty.DifficultyFilter:
    return difficulty.create(difficulty.DifficultyOptions(**options))


def group(*rewards: float, example: str = "e") -> list[Rollout]:
    return [rollout(reward, example=example) for reward in rewards]


def test_filters_obey_their_contracts() -> None:
    made = [
        by_difficulty(),
        length.create(length.LengthOptions(truncated=True)),
        repetition.create(repetition.RepetitionOptions()),
    ]
    assert all(isinstance(one, RolloutFilter) for one in made)
    assert [isinstance(one, ExampleHistory) for one in made] == [True, False, False]


@pytest.mark.parametrize(
    ("rewards", "reason"),
    [
        ((0.0, 0.0, 0.0, 0.4), "too_hard"),
        ((1.0, 1.0, 1.0, 0.9), "too_easy"),
        ((0.5, 0.5, 0.5, 0.5), "equal_rewards"),
        ((0.0, 0.0, 0.0, 0.8), None),
        ((1.0, 1.0, 1.0, 0.6), None),
    ],
)
def test_groups_outside_the_range_are_dropped_whole(rewards: tuple[float, ...], reason: str | None) -> None:
    assert by_difficulty(low=0.2, high=0.9).judge(group(*rewards)) == [reason] * 4


def test_groups_without_spread_stay_where_they_are_wanted() -> None:
    assert by_difficulty(equal_rewards=False).judge(group(1.0, 1.0)) == [None, None]


def test_an_example_solved_often_enough_is_played_less_until_it_fails_again() -> None:
    one = by_difficulty(solved_in_a_row=2, solved_share=0.25, solved_reward=0.9)
    one.note(group(1.0, 0.8))
    assert all(one.wants("e", number) for number in range(50))
    one.note(group(1.0, 1.0))
    wanted = [one.wants("e", number) for number in range(1000)]
    assert 200 < sum(wanted) < 300
    assert wanted == [one.wants("e", number) for number in range(1000)]
    assert all(one.wants("another", number) for number in range(50))
    again = by_difficulty(solved_in_a_row=2, solved_share=0.25)
    again.restore(json.loads(json.dumps(one.state())))
    assert wanted == [again.wants("e", number) for number in range(1000)]
    one.note(group(1.0, 0.0))
    assert all(one.wants("e", number) for number in range(50))


def test_rollouts_are_judged_by_their_own_lengths() -> None:
    limits = length.LengthOptions(min_completion_tokens=2, max_completion_tokens=4, max_total_tokens=8, truncated=True)
    judged = length.create(limits).judge(
        [
            rollout(sampled=[1]),
            rollout(sampled=[1] * 2),
            rollout(sampled=[1] * 4, prompt=4),
            rollout(sampled=[1] * 4, prompt=5),
            rollout(sampled=[1] * 5),
            rollout(sampled=[1] * 3, is_truncated=True),
        ]
    )
    assert judged == ["too_short", None, None, "too_long", "too_long", "truncated"]


def test_a_turn_that_repeats_itself_is_dropped_and_a_short_one_is_not_judged() -> None:
    made = repetition.create(repetition.RepetitionOptions(ngram=2, max_share=0.5, min_tokens=6))
    looping, varied, short = [1, 2] * 4, [1, 2, 3, 4, 1, 2, 5, 6], [1] * 5
    assert made.judge([rollout(sampled=ids) for ids in (looping, varied, short)]) == ["repetitive", None, None]
    assert repetition.repeated_share([1, 1, 1, 1], 2) == pytest.approx(2 / 3)
    assert repetition.repeated_share([1], 2) == 0.0


def test_options_that_contradict_themselves_or_do_nothing_are_refused() -> None:
    with pytest.raises(ValidationError, match="must not be above"):
        difficulty.DifficultyOptions(low=0.9, high=0.1)
    with pytest.raises(ValidationError, match="drops nothing"):
        length.LengthOptions()
    with pytest.raises(ValidationError, match="must not be above"):
        length.LengthOptions(min_completion_tokens=9, max_completion_tokens=8)


def test_the_first_filter_that_drops_a_rollout_is_named_and_broken_rollouts_are_not_judged() -> None:
    seen: list[int] = []

    class Spy:
        name = "spy"

        def judge(self, rollouts: Sequence[Rollout]) -> Sequence[str | None]:
            seen.append(len(rollouts))
            return ["seen"] * len(rollouts)

    made = FilterSet({"length": length.create(length.LengthOptions(truncated=True)), "spy": Spy()})
    rollouts = [rollout(is_truncated=True), rollout(error="OSError: x"), rollout()]
    assert made.judge(rollouts) == ["length/truncated", None, "spy/seen"]
    assert seen == [2]


def test_a_filter_that_forgets_a_rollout_is_named() -> None:
    class Short:
        name = "short"

        def judge(self, rollouts: Sequence[Rollout]) -> Sequence[str | None]:
            return [None]

    with pytest.raises(RunError, match="filter 'short' returned 1 judgements for 2 rollouts"):
        FilterSet({"short": Short()}).judge([rollout(), rollout()])


@pytest.mark.parametrize("act", ["judge", "wants", "note", "restore"])
def test_a_filter_that_fails_is_named(act: str) -> None:
    """Its traceback alone would not say which of the filters it was, nor that the run can go on."""

    class Failing(difficulty.DifficultyFilter):
        def fail(self, *arguments: Any) -> Any:
            raise ZeroDivisionError("division by zero")

    failing = Failing(difficulty.DifficultyOptions())
    setattr(failing, act, failing.fail)
    filters = FilterSet({"mine": failing})
    calls = {
        "judge": lambda: filters.judge([rollout(1.0)]),
        "wants": lambda: filters.wants("e", 0),
        "note": lambda: filters.note([rollout(1.0)]),
        "restore": lambda: filters.restore({"mine": {}}),
    }
    with pytest.raises(RunError, match="filter 'mine' failed: ZeroDivisionError: division by zero"):
        calls[act]()


def test_what_filters_remember_is_kept_by_label() -> None:
    first, second = (FilterSet({"difficulty": by_difficulty(solved_in_a_row=1, solved_share=0)}) for _ in range(2))
    first.note([rollout(0.0, error="OSError: x"), *group(1.0, 1.0)])
    first.note([rollout(1.0, example="broken", error="OSError: x")])
    second.restore(first.state() | {"gone": {}})
    assert (second.has_history, second.wants("e", 1), second.wants("broken", 1)) == (True, False, True)
    assert FilterSet({}).has_history is False


def test_two_filters_of_one_name_are_told_apart(tmp_path: Path) -> None:
    from prl_train.config import FilterSection
    from prl_train.launch.workers import make_filters

    sections = [
        FilterSection(name="length", options={"truncated": True}),
        FilterSection(name="length", options={"max_completion_tokens": 2}),
    ]
    assert make_filters(sections).judge([rollout(is_truncated=True), rollout(sampled=[1, 2, 3])]) == [
        "length/truncated",
        "length-2/too_long",
    ]
