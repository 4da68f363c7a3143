"""One rollout: how it ends, and what it keeps."""

from __future__ import annotations

from typing import Any

import pytest

from prl.types import PromptTooLongError, SamplingParams
from prl_train.orchestrator.groups import GroupRunner
from prl_train.orchestrator.play import LiveRollout, RolloutPlayer
from prl_train.orchestrator.schedule import Schedule, WeightedEnvironment


def live() -> LiveRollout:
    return LiveRollout(trajectory_id="t", group_id="g", environment="scripted", example_id="e", seed=1)


def player(mode: Any, **options: Any) -> RolloutPlayer:
    return RolloutPlayer(mode, model="m", sampling=SamplingParams(), **options)


async def play(fakes: Any, answers: list[Any], *, turns: int = 3, **options: Any) -> LiveRollout:
    script = iter(answers)
    environment = fakes.Environment(score=float, max_turns=turns)
    rollout = live()
    mode = fakes.Mode(lambda session: next(script))
    await player(mode, **options).play(rollout, environment, environment.example(0), "weights-4")
    assert [session.salt for session in mode.sessions] == ["weights-4"]
    return rollout


async def test_a_rollout_runs_until_the_environment_is_done(fakes: Any) -> None:
    rollout = await play(fakes, [fakes.turn("0"), fakes.turn("0.25"), fakes.turn("0.5")])
    assert (rollout.stop_reason, rollout.reward, len(rollout.turns)) == ("done", 0.5, 3)
    assert [message["role"] for message in rollout.messages] == ["user", "assistant"] * 3


async def test_an_overlong_prompt_is_a_truncation_whose_earlier_turns_stay_trainable(fakes: Any) -> None:
    rollout = (await play(fakes, [fakes.turn("0.5"), PromptTooLongError("540 tokens, the context is 512")])).finished()
    assert (rollout.stop_reason, rollout.is_truncated, rollout.error) == ("prompt_too_long", True, None)
    assert (len(rollout.turns), rollout.reward) == (1, 0.5)
    assert [message["role"] for message in rollout.messages] == ["user", "assistant"]


async def test_a_turn_out_of_tokens_ends_the_rollout_unless_told_otherwise(fakes: Any) -> None:
    cut = fakes.turn("0.1", finish="length")
    rollout = await play(fakes, [cut])
    assert (rollout.stop_reason, rollout.is_truncated, rollout.reward) == ("length", True, 0.1)
    rollout = await play(fakes, [cut, fakes.turn("0.2"), fakes.turn("0.3")], continue_truncated=True)
    assert (rollout.stop_reason, rollout.is_truncated, len(rollout.turns)) == ("done", True, 3)


async def test_max_turns_of_the_run_is_a_limit_below_the_environments(fakes: Any) -> None:
    rollout = await play(fakes, [fakes.turn("0"), fakes.turn("0")], max_turns=2)
    assert (rollout.stop_reason, len(rollout.turns)) == ("max_turns", 2)


def runner(fakes: Any, mode: Any, environment: Any, size: int = 4) -> GroupRunner:
    schedule = Schedule([WeightedEnvironment(environment)], seed=0)
    return GroupRunner(
        fakes.executor(mode, schedule),
        schedule,
        group_size=size,
        max_concurrency=8,
        advantage_std=False,
        current_version=lambda: 0,
    )


async def test_an_error_in_one_rollout_keeps_its_turns_and_spares_the_others(fakes: Any) -> None:
    calls = iter(range(100))

    def answer(session: Any) -> Any:
        if session.turns == 1 and session.seed == broken:
            return RuntimeError("the tool server is gone")
        return fakes.turn(str(next(calls) % 2))

    group_runner = runner(fakes, fakes.Mode(answer), fakes.Environment(score=float, max_turns=2))
    broken = group_runner.schedule.rollout_seed(0, 2)
    group = await group_runner.run(0)
    errors = [rollout.error for rollout in group.rollouts]
    assert errors == [None, None, "RuntimeError: the tool server is gone", None]
    assert group.rollouts[2].stop_reason == "error"
    assert len(group.rollouts[2].turns) == 1
    assert group.advantages[2] == 0.0
    assert len(group.valid) == 3
    assert all(sample.trajectory_id != "group-000000/002" for sample in group.samples())


async def test_advantages_are_rewards_minus_the_groups_mean(fakes: Any) -> None:
    rewards = iter(["1", "0", "0", "1"])
    mode = fakes.Mode(lambda session: fakes.turn(next(rewards)))
    group = await runner(fakes, mode, fakes.Environment(score=float)).run(3)
    assert group.advantages == pytest.approx([0.5, -0.5, -0.5, 0.5])
    assert [sample.advantage for sample in group.samples()] == pytest.approx([0.5, -0.5, -0.5, 0.5])
    assert {rollout.example_id for rollout in group.rollouts} == {"scripted/3"}


async def test_a_group_whose_rewards_are_equal_gives_no_samples(fakes: Any) -> None:
    group = await runner(fakes, fakes.Mode(lambda session: fakes.turn("1")), fakes.Environment(score=float)).run(0)
    assert not group.has_signal
    assert group.samples() == []


async def test_no_more_rollouts_than_allowed_are_in_flight(fakes: Any) -> None:
    import asyncio

    flying = peak = 0

    async def answer(session: Any) -> Any:
        nonlocal flying, peak
        flying += 1
        peak = max(peak, flying)
        await asyncio.sleep(0.001)
        flying -= 1
        return fakes.turn("1")

    group_runner = runner(fakes, fakes.Mode(answer), fakes.Environment(score=float), size=20)
    await asyncio.gather(group_runner.run(0), group_runner.run(1))
    assert peak == 8


def test_rollouts_of_one_seed_are_the_same_and_of_others_are_not(fakes: Any) -> None:
    environment = WeightedEnvironment(fakes.Environment(score=float))
    one, same, other = (Schedule([environment], seed=seed) for seed in (0, 0, 1))
    seeds = [one.rollout_seed(group, member) for group in range(20) for member in range(20)]
    assert seeds == [same.rollout_seed(group, member) for group in range(20) for member in range(20)]
    assert len(set(seeds)) == 400
    assert seeds[0] != other.rollout_seed(0, 0)


def test_environments_get_their_share_of_the_groups(fakes: Any) -> None:
    often = fakes.Environment(score=float, name="often")
    seldom = fakes.Environment(score=float, name="seldom")
    schedule = Schedule([WeightedEnvironment(often, 3.0), WeightedEnvironment(seldom, 1.0)], seed=0)
    names = [schedule.task(group)[0].name for group in range(1000)]
    assert 700 < names.count("often") < 800
