"""Samples are completed beside the rollouts, and what cannot be completed is not trained on."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from prl.contracts import Example
from prl.trajectory import InterleaveResult
from prl.types import MalformedResponseError, Message, Rollout, Turn
from prl_train.orchestrator.groups import GroupRunner
from prl_train.orchestrator.schedule import Schedule, WeightedEnvironment


class Tasks:
    name, max_turns, tools = "tasks", 1, None

    def example(self, index: int) -> Example:
        return Example(id=str(index), messages=({"role": "user", "content": f"task {index}"},))

    def start(self, example: Example) -> Any:
        raise AssertionError("the executor plays")


class Executor:
    """Member n takes n tenths of a second, and gets the reward 1."""

    def __init__(self, log: list[str], logprobs: bool = True) -> None:
        self.log = log
        self.logprobs = logprobs

    async def play(self, job: Any) -> Rollout:
        await asyncio.sleep(job.member / 10)
        self.log.append(f"played {job.member}")
        turn = Turn(
            prompt_ids=[1, 2],
            completion_ids=[3 + job.member],
            logprobs=[-0.5] if self.logprobs else None,
            finish_reason="stop",
            weight_version=0,
            message={"role": "assistant", "content": "x"},
        )
        return Rollout(trajectory_id=str(job.member), turns=(turn,), reward=1.0)


def runner(executor: Any, **options: Any) -> GroupRunner:
    schedule = Schedule([WeightedEnvironment(Tasks())], 0)
    settings = {"group_size": 3, "max_concurrency": 8, "advantage_std": False, "current_version": lambda: 0}
    return GroupRunner(executor, schedule, **settings | options)


async def test_a_rollout_is_completed_as_soon_as_it_was_played() -> None:
    log: list[str] = []

    async def score(rollout: Rollout, result: InterleaveResult) -> InterleaveResult:
        log.append(f"scored {rollout.trajectory_id}")
        return replace(result, samples=[replace(one, teacher_logprobs=[0.0, -1.0, -2.0]) for one in result.samples])

    group = await runner(Executor(log), finishers=[score], compares=False).run(4)
    assert log == ["played 0", "scored 0", "played 1", "scored 1", "played 2", "scored 2"]
    assert [one.teacher_logprobs for one in group.samples()] == [[0.0, -1.0, -2.0]] * 3


async def test_a_rollout_that_cannot_be_completed_is_counted_as_broken_and_spares_the_others() -> None:
    async def score(rollout: Rollout, result: InterleaveResult) -> InterleaveResult:
        if rollout.trajectory_id == "1":
            raise MalformedResponseError("the teacher gave 2 of 3", where="the teacher", next_step="look at it")
        return result

    group = await runner(Executor([]), finishers=[score], compares=False).run(0)
    assert [rollout.error is None for rollout in group.rollouts] == [True, False, True]
    assert "the teacher gave 2 of 3" in str(group.rollouts[1].error)
    assert [one.completion_ids for one in group.samples()] == [[3], [5]]


async def test_equal_rewards_teach_a_loss_that_does_not_compare() -> None:
    assert (await runner(Executor([])).run(0)).samples() == []
    assert [one.advantage for one in (await runner(Executor([]), compares=False).run(0)).samples()] == [1.0] * 3


async def test_what_another_model_said_is_never_too_old() -> None:
    """A slow teacher's answers are not thrown away because our weights have moved on."""
    assert (await runner(Executor([])).run(0)).oldest_version == 0
    assert (await runner(Executor([], logprobs=False), compares=False).run(0)).oldest_version is None


async def test_who_prepares_images_is_told_of_a_tasks_messages_before_it_is_played() -> None:
    log: list[str] = []

    def expect(messages: Any) -> None:
        opening: list[Message] = list(messages)
        log.append(str(opening[0]["content"]))

    await runner(Executor(log), expect=expect, group_size=2).run(7)
    assert log == ["task 7", "played 0", "played 1"]
