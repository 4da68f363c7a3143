"""What an environment answers may be anything: it is checked, recorded with its place, and never reaches a batch."""

from __future__ import annotations

import asyncio
import math
import sys
from typing import Any

import numpy as np
import pytest

from prl.contracts import AgentResult, Example, StepResult
from prl.types import PromptTooLongError, SamplingParams
from prl_train.executor.stages import Stage, StagePlayer
from prl_train.orchestrator import RolloutPlayer, Schedule, WeightedEnvironment
from prl_train.orchestrator.answers import EnvironmentAnswerError, check_agent_result, check_example
from prl_train.orchestrator.groups import Group, GroupRunner

GOOD = {"role": "user", "content": "on"}
DONE = StepResult(done=True, reward=1.0)


class Answering:
    """An environment whose episodes answer with what the test says."""

    name = "answering"
    tools = None

    def __init__(self, answer: Any, *, max_turns: Any = 2, example: Any = None) -> None:
        self.answer = answer
        self.max_turns = max_turns
        self.made = example

    def example(self, index: int) -> Any:
        if self.made is None:
            return Example(id=f"answering/{index}", messages=({"role": "user", "content": f"task {index}"},))
        return self.made(index)

    def start(self, example: Example) -> Answering:
        return self

    async def step(self, message: Any, parsed: Any) -> Any:
        made = self.answer(message)
        return await made if asyncio.iscoroutine(made) else made


async def group(fakes: Any, environment: Any, *, answer: Any = None, size: int = 2, **limits: Any) -> Group:
    schedule = Schedule([WeightedEnvironment(environment)], seed=0)
    seconds = limits.pop("seconds", None)
    mode = fakes.Mode(answer or (lambda session: fakes.turn("yes" if session.seed % 2 else "no")))
    player = RolloutPlayer(mode, model="m", sampling=SamplingParams(), **limits)
    runner = GroupRunner(
        StagePlayer({None: Stage(schedule, player)}, seconds=seconds),  # type: ignore[arg-type]
        schedule,
        group_size=size,
        max_concurrency=8,
        advantage_std=False,
        current_version=lambda: 0,
    )
    return await asyncio.wait_for(runner.run(5), 60)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (StepResult(done=True, reward=math.nan), "the reward is nan"),
        (StepResult(done=True, reward=-math.inf), "the reward is -inf"),
        (StepResult(done=True, reward=None), "the reward is None (NoneType)"),  # type: ignore[arg-type]
        (StepResult(done=True, reward="0.5"), "the reward is '0.5' (str)"),  # type: ignore[arg-type]
        (StepResult(done=True, metrics={"speed": math.inf}), "metric 'speed' is inf"),
        (StepResult(done=True, metrics={"tool": "bash"}), "metric 'tool' is 'bash' (str)"),  # type: ignore[dict-item]
        (StepResult(done=True, metrics={3: 1.0}), "a metric is named 3"),  # type: ignore[dict-item]
        (StepResult(done=True, metrics={"\ud800": 1.0}), "a metric is named '\\ud800'"),
        (StepResult(done=True, metrics=[1.0]), "the metrics are [1.0] (list)"),  # type: ignore[arg-type]
        (StepResult(messages=({"role": "assistant", "content": "I win"},)), "message 0 has the role 'assistant'"),
        (StepResult(messages=(GOOD, {"role": "oracle"})), "message 1 has the role 'oracle'"),  # type: ignore[arg-type]
        (StepResult(messages=("go on",)), "message 0 is 'go on' (str)"),  # type: ignore[arg-type]
        (StepResult(messages="go on"), "the messages are 'go on' (str)"),  # type: ignore[arg-type]
        (StepResult(), "the episode is not done and says nothing"),
        (None, "step() returned None (NoneType)"),
        ({"reward": 1.0, "done": True}, "step() returned {'reward': 1.0, 'done': True} (dict)"),
    ],
)
async def test_an_answer_that_is_none_is_an_error_of_its_rollout(fakes: Any, answer: Any, said: str) -> None:
    played = await group(fakes, Answering(lambda message: answer))
    assert [rollout.stop_reason for rollout in played.rollouts] == ["error", "error"]
    error = played.rollouts[0].error
    assert error is not None
    assert error.startswith(f"EnvironmentAnswerError: {said}")
    assert "environment 'answering', example 'answering/5', turn 1" in error
    assert (len(played.rollouts[0].turns), played.rollouts[0].reward) == (1, 0.0)
    assert [any(sample.completion_mask) for result in played.results for sample in result.samples] == [False, False]
    assert (played.failed, played.samples(), played.advantages) == (True, [], [0.0, 0.0])


async def test_one_rollout_without_a_number_for_a_reward_does_not_spoil_its_siblings(fakes: Any) -> None:
    """The mean of a group with one `nan` is `nan`, and so would be all its advantages."""
    rewards = iter([1.0, math.nan, 0.0, 1.0])

    def answer(message: Any) -> StepResult:
        return StepResult(done=True, reward=next(rewards))

    played = await group(fakes, Answering(answer), size=4)
    assert [rollout.error is None for rollout in played.rollouts] == [True, False, True, True]
    assert played.advantages == pytest.approx([1 / 3, 0.0, -2 / 3, 1 / 3])


async def test_numbers_of_numpy_are_numbers(fakes: Any) -> None:
    """Many environments compute rewards with numpy; the batch and the metrics are written as plain floats."""
    step = StepResult(done=True, reward=np.float32(0.5), metrics={"speed": np.int64(3), "won": True})  # type: ignore[arg-type]
    played = await group(fakes, Answering(lambda message: step))
    rollout = played.rollouts[0]
    assert (type(rollout.reward), rollout.reward, rollout.metrics) == (float, 0.5, {"speed": 3.0, "won": 1.0})
    assert {type(value) for value in rollout.metrics.values()} == {float}


async def test_an_environment_that_hangs_costs_its_rollout_and_no_more(fakes: Any) -> None:
    async def hang() -> StepResult:
        await asyncio.sleep(3600)
        raise AssertionError

    played = await group(fakes, Answering(lambda message: hang()), environment_seconds=0.05)
    assert "the environment did not answer within 0.05 s" in str(played.rollouts[0].error)
    assert "raise orchestrator.environment_seconds" in str(played.rollouts[0].error)
    played = await group(fakes, Answering(lambda message: hang()), seconds=0.05)
    assert "the rollout did not end within 0.05 s" in str(played.rollouts[0].error)
    assert len(played.rollouts[0].turns) == 1


async def test_code_of_a_model_that_exits_costs_its_rollout_and_no_more(fakes: Any) -> None:
    """A reward that executes the model's `exit()` ends the whole run, and the hours of its other rollouts."""
    exits = iter([False, True, False])
    played = await group(fakes, Answering(lambda message: sys.exit(3) if next(exits) else DONE), size=3)
    assert [rollout.error is None for rollout in played.rollouts] == [True, False, True]
    error = str(played.rollouts[1].error)
    assert error.startswith("EnvironmentAnswerError: the environment ended the program: SystemExit: 3")
    assert "environment 'answering', example 'answering/5', turn 1" in error
    assert len(played.rollouts[1].turns) == 1


async def test_a_timeout_of_the_environments_own_keeps_its_name(fakes: Any) -> None:
    async def give_up() -> StepResult:
        raise TimeoutError("the sandbox took too long")

    played = await group(fakes, Answering(lambda message: give_up()), environment_seconds=5.0)
    assert played.rollouts[0].error == "TimeoutError: the sandbox took too long"


@pytest.mark.parametrize(
    ("example", "said"),
    [
        (lambda index: {}["no such row"], "example(5) failed: KeyError: 'no such row'"),
        (lambda index: sys.exit("no data"), "example(5) failed: SystemExit: no data"),
        (lambda index: {"id": "5"}, "example() returned {'id': '5'} (dict)"),
        (lambda index: Example(id="5", messages=()), "the example has no messages"),
        (lambda index: Example(id="5", messages=({"role": "boss", "content": "!"},)), "message 0 has the role 'boss'"),
    ],
)
async def test_a_task_that_cannot_be_had_fails_its_group_and_not_the_run(fakes: Any, example: Any, said: str) -> None:
    played = await group(fakes, Answering(None, example=example))
    assert played.failed
    error = str(played.rollouts[0].error)
    assert said in error
    assert "environment 'answering', example(5)" in error
    assert played.rollouts[0].example_id == "answering/5"


@pytest.mark.parametrize("turns", [0, -1])
async def test_a_rollout_without_a_turn_is_no_result(fakes: Any, turns: int) -> None:
    """It has no reward; counted as 0.0 it would lower the mean that its siblings are compared with."""
    played = await group(fakes, Answering(None, max_turns=turns))
    assert "the rollout ended before its first turn" in str(played.rollouts[0].error)


async def test_a_task_that_does_not_fit_the_context_says_so(fakes: Any) -> None:
    """Without a turn there is nothing to train on: the group is replaced, and many such tasks stop the run by name."""
    too_long = PromptTooLongError("540 tokens, the context is 512")
    played = await group(fakes, Answering(None), answer=lambda session: too_long)
    assert played.failed
    assert played.rollouts[0].error == "PromptTooLongError: 540 tokens, the context is 512"


def test_what_agents_and_examples_return_is_checked_alike() -> None:
    for wrong in (AgentResult(reward=math.nan), AgentResult(reward=1.0, metrics={"x": math.nan}), None):
        with pytest.raises(EnvironmentAnswerError):
            check_agent_result(wrong, "here")
    assert check_agent_result(AgentResult(reward=1, output="done"), "here").reward == 1.0
    few_shot = Example(id="e", messages=(GOOD, {"role": "assistant", "content": "4"}, GOOD))  # type: ignore[arg-type]
    assert check_example(few_shot, "here") is few_shot
