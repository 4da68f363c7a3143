"""The figures of a step: per environment, per cause, per error, and where the time went."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from prl.trajectory import interleave_rollout
from prl.types import Rollout, Turn
from prl_train.orchestrator.filtering import FilterSet
from prl_train.orchestrator.groups import Group, GroupRunner
from prl_train.orchestrator.lag import LagMonitor
from prl_train.orchestrator.measure import step_metrics
from prl_train.orchestrator.pool import PoolCounts
from prl_train.orchestrator.records import RecordThread
from prl_train.orchestrator.rollout_log import rollout_lines
from prl_train.orchestrator.step_clock import StepClock


def turn(prompt: list[int], completion: list[int], version: int = 0) -> Turn:
    return Turn(
        prompt_ids=prompt,
        completion_ids=completion,
        logprobs=[-0.1] * len(completion),
        finish_reason="stop",
        weight_version=version,
        message={"role": "assistant", "content": "x"},
    )


def rollout(reward: float, *turns: Turn, environment: str = "a", **fields: Any) -> Rollout:
    return Rollout(trajectory_id="t", turns=turns, reward=reward, environment=environment, **fields)


def make_group(fakes: Any, rollouts: list[Rollout], name: str = "a", filters: FilterSet | None = None) -> Group:
    environment = fakes.Environment(score=float, name=name)
    runner = GroupRunner(
        None,  # type: ignore[arg-type]
        None,  # type: ignore[arg-type]
        group_size=2,
        max_concurrency=1,
        advantage_std=False,
        current_version=lambda: 0,
        filters=filters,
    )
    return runner._assemble(0, environment, [(one, interleave_rollout(one)) for one in rollouts])


class Picky:
    """Drops what earned nothing."""

    name = "picky"

    def judge(self, rollouts: Any) -> list[str | None]:
        return [None if one.reward else "nothing" for one in rollouts]


def figures(fakes: Any) -> dict[str, float]:
    straight = rollout(1.0, turn([1], [2], 4), turn([1, 2, 3], [4, 5], 5), metrics={"malformed": 1.0})
    broken_off = rollout(0.0, turn([1], [2], 5), turn([1, 9, 9, 9], [4], 5), metrics={"malformed": 0.0})
    errored = rollout(0.0, turn([1], [2], 5), error="TimeoutError: the tool server")
    easy = [rollout(0.5, turn([7], [8], 5), environment="b", is_truncated=True)] * 2
    lost = [rollout(0.0, turn([7], [8], 5), environment="b"), rollout(0.0, error="OSError: x", environment="b")]
    picky = FilterSet({"picky": Picky()})
    groups = [make_group(fakes, [straight, broken_off, errored]), make_group(fakes, easy, "b")]
    counts = PoolCounts(filtered=1, errors=2, cancelled=3, dropped=[make_group(fakes, lost, "b", picky)])
    return step_metrics(groups, counts, step=6, seconds=2.0)


def test_a_steps_figures_are_told_for_all_and_for_each_environment(fakes: Any) -> None:
    values = figures(fakes)
    expected = {
        "reward": 0.5,
        "reward/played": 0.4,
        "reward/min": 0.0,
        "reward/max": 1.0,
        "rollouts": 4.0,
        "samples_per_rollout": 1.25,
        "breaks": 1.0,
        "errors/TimeoutError": 1.0,
        "errors/OSError": 1.0,
        "filters/picky/nothing": 1.0,
        "groups/filtered": 1.0,
        "groups/cancelled": 3.0,
        "off_policy_lag": 2.0,
        "env/a/reward": 0.5,
        "env/a/reward/std": 0.5,
        "env/a/malformed": 0.5,
        "env/a/samples_per_rollout": 1.5,
        "env/a/breaks/other": 1.0,
        "env/a/turns_per_rollout": 2.0,
        "env/a/tokens_per_rollout": 2.5,
        "env/a/errors/TimeoutError": 1.0,
        "env/b/rollouts/truncated": 2.0,
        "env/b/breaks": 0.0,
        "env/b/filters/picky/nothing": 1.0,
    }
    assert {name: values.get(name) for name in expected} == pytest.approx(expected)
    assert "env/a/filters/picky/nothing" not in values


def test_names_of_an_environments_metrics_hide_nothing(fakes: Any) -> None:
    """Slashes and any letters are names too; one that is taken stands beside the run's own."""
    own = {"reward": 9.0, "tools/bash": 2.0, "größe 大": 3.0}
    groups = [make_group(fakes, [rollout(1.0, turn([1], [2]), metrics=own)])]
    told = step_metrics(groups, PoolCounts(), step=1, seconds=1.0)
    assert (told["env/a/reward"], told["env/a/own/reward"]) == (1.0, 9.0)
    assert (told["env/a/tools/bash"], told["env/a/größe 大"]) == (2.0, 3.0)


def test_anything_that_a_model_says_can_be_logged(fakes: Any) -> None:
    r"""A tool call with "\ud800" in its arguments is valid JSON, and half a surrogate pair that UTF-8 cannot write."""
    said = ({"role": "user", "content": "größe\u2028"}, {"role": "assistant", "content": "\ud800"})
    lines = rollout_lines([make_group(fakes, [rollout(1.0, turn([1], [2]), messages=said)])], None)
    assert json.loads(lines.encode())["messages"] == list(said)
    plain = rollout_lines([make_group(fakes, [rollout(1.0, turn([1], [2]), messages=said[:1])])], None)
    assert "größe" in plain


def test_a_prompt_that_two_samples_could_take_is_counted(fakes: Any) -> None:
    # The second turn rewrites history, the third could extend either sample: the longest is taken, and that is told.
    ambiguous = rollout(1.0, turn([1], [2]), turn([1], [2, 3]), turn([1, 2, 3, 4], [5]))
    group = make_group(fakes, [ambiguous, rollout(0.0, turn([1], [2]))])
    assert step_metrics([group], PoolCounts(), step=0, seconds=1.0)["env/a/ambiguous_prefixes"] == 1.0


def test_what_filters_drop_is_not_trained_on_and_marked_in_the_log(fakes: Any) -> None:
    rollouts = [rollout(1.0, turn([1], [2])), rollout(0.0, turn([1], [3]))]
    group = make_group(fakes, rollouts, filters=FilterSet({"picky": Picky()}))
    assert [sample.completion_ids for sample in group.samples()] == [[2]]
    assert group.advantages == [0.5, -0.5], "what is dropped still counts in the mean"
    left_out = make_group(fakes, rollouts)
    lines = rollout_lines([group], None, dropped=[left_out]).splitlines()
    assert [json.loads(line)["dropped"] for line in lines] == [None, "picky/nothing", "group", "group"]


def test_a_group_whose_kept_rollouts_teach_nothing_has_no_signal(fakes: Any) -> None:
    class Zeros(Picky):
        def judge(self, rollouts: Any) -> list[str | None]:
            return [None if one.reward == 0.5 else "far" for one in rollouts]

    rollouts = [rollout(reward, turn([1], [2])) for reward in (0.0, 0.5, 1.0)]
    group = make_group(fakes, rollouts, filters=FilterSet({"zeros": Zeros()}))
    assert (group.has_signal, group.filtered, group.samples()) == (False, False, [])


def test_a_steps_time_is_shared_out_and_its_throughput_told(fakes: Any) -> None:
    group = make_group(fakes, [rollout(1.0, turn([1], [2, 3, 4]))] * 2)
    clock = StepClock()
    clock.begin()
    time.sleep(0.05)
    waited = clock.collected()
    values = clock.measure([group], PoolCounts(idle=0.025))
    assert waited >= 0.05
    assert values["time/share/rollouts"] == pytest.approx(waited / values["time/step_s"])
    assert values["time/share/idle"] == pytest.approx(0.025 / values["time/step_s"])
    assert values["throughput/tokens_per_s"] == pytest.approx(6 / values["time/step_s"])
    assert values["throughput/rollouts_per_s"] == pytest.approx(2 / values["time/step_s"])


async def test_a_blocked_event_loop_is_measured() -> None:
    async with LagMonitor(interval=0.01) as monitor:
        await asyncio.sleep(0.05)
        monitor.take()
        time.sleep(0.1)
        await asyncio.sleep(0.02)
        values = monitor.take()
    assert values["event_loop/lag_max_ms"] > 80
    assert 0 < values["event_loop/lag_mean_ms"] <= values["event_loop/lag_max_ms"]


async def test_records_are_made_in_order_beside_the_event_loop_and_their_faults_come_out() -> None:
    thread, gate, made = RecordThread(), threading.Event(), []

    def slow(value: int) -> None:
        assert gate.wait(10)
        made.append(value)

    for value in range(3):
        thread.give(slow, value)
    thread.raise_if_failed()
    assert made == []
    gate.set()
    await thread.drain()
    assert made == [0, 1, 2]
    thread.give(int, "no number")
    with pytest.raises(ValueError, match="no number"):
        await thread.drain()
    await thread.close()


def test_owners_of_an_agents_tokens_are_not_guessed(fakes: Any, tmp_path: Path) -> None:
    from prl_train.orchestrator.rollout_log import _turn_starts

    said: Any = {"role": "assistant", "content": "x"}
    asked: Any = {"role": "user", "content": "?"}
    few_shot = rollout(0.0, turn([1], [2]), messages=(asked, said, asked, said))
    assert _turn_starts(few_shot) == [3]
    assert _turn_starts(rollout(0.0, turn([1], [2]), turn([1], [3]), messages=(asked, said))) is None
