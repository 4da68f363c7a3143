"""Evaluations beside training: when they run, what they report, and that a resumed run does not repeat them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from prl_train.config import OrchestratorSection
from prl_train.orchestrator import Orchestrator, Schedule, WeightedEnvironment
from prl_train.orchestrator.evaluation import Evaluation, EvaluationPlan, evaluation_metrics
from prl_train.orchestrator.groups import GroupRunner
from prl_train.orchestrator.sinks import SinkSet
from prl_train.orchestrator.weights import WeightFollower
from prl_train.run import RunFolder
from prl_train.run.metrics import is_evaluation, read_metrics
from prl_train.run.sinks import JsonlSink


class Weights:
    """An engine that takes any weights."""

    version = -1

    async def load_weights(self, directory: str, version: int) -> None:
        self.version = version


def runner(fakes: Any, answer: Any, *, size: int = 2, version: Any = lambda: 0, **fields: Any) -> GroupRunner:
    environment = fakes.Environment(score=lambda text: float(text == "yes"), name="held-out")
    schedule = Schedule([WeightedEnvironment(environment)], seed=9)
    executor = fakes.executor(fakes.Mode(answer), schedule, evaluations={"exam": schedule})
    return GroupRunner(
        executor,
        schedule,
        group_size=size,
        max_concurrency=fields.pop("max_concurrency", 64),
        advantage_std=False,
        current_version=version,
        evaluation="exam",
    )


def plan(one: GroupRunner, **fields: Any) -> EvaluationPlan:
    return EvaluationPlan(name="exam", runner=one, **{"examples": 3, "every": 2, **fields})


async def settle(evaluation: Evaluation) -> None:
    while evaluation._task is not None:
        await asyncio.sleep(0.001)


async def versions_evaluated(folder: RunFolder, made: EvaluationPlan, seen: list[int], *, last: int) -> list[int]:
    told: list[int] = []
    evaluation = Evaluation(made, folder, None, lambda version, values: told.append(version))
    for version in seen:
        evaluation.new_weights(version)
        await settle(evaluation)
    await evaluation.finish(last)
    return told


@pytest.mark.parametrize(
    ("fields", "seen", "told"),
    [
        ({}, [0, 1, 2, 3, 4, 5], [0, 2, 4, 5]),
        ({"at_start": False, "at_end": False}, [0, 1, 2, 3, 4, 5], [2, 4]),
        ({"every": 3}, [0, 2, 4, 5], [0, 4, 5]),  # version 3 was never loaded: the next one stands for it
        ({"every": 100}, [0, 1, 2], [0, 2]),
    ],
)
async def test_evaluations_run_when_the_plan_says(
    tmp_path: Path, fakes: Any, fields: dict[str, Any], seen: list[int], told: list[int]
) -> None:
    made = plan(runner(fakes, fakes.coin), **fields)
    assert await versions_evaluated(RunFolder(tmp_path), made, seen, last=seen[-1]) == told


async def test_a_resumed_run_does_not_repeat_what_is_done_but_what_was_cut_short(tmp_path: Path, fakes: Any) -> None:
    folder = RunFolder(tmp_path)
    assert await versions_evaluated(folder, plan(runner(fakes, fakes.coin)), [0, 1, 2], last=2) == [0, 2]
    assert folder.evaluated_steps("exam") == [0, 2]
    assert await versions_evaluated(folder, plan(runner(fakes, fakes.coin)), [2, 3], last=3) == [3]
    folder.evaluation_path("exam", 2).unlink()
    folder.evaluation_path("exam", 3).unlink()
    assert await versions_evaluated(folder, plan(runner(fakes, fakes.coin), at_end=False), [2], last=2) == [2]


async def test_what_comes_due_during_an_evaluation_waits_and_only_the_newest_is_done(
    tmp_path: Path, fakes: Any
) -> None:
    gate = asyncio.Event()

    async def slow(session: Any) -> Any:
        await gate.wait()
        return fakes.turn("yes")

    told: list[tuple[int, float]] = []
    evaluation = Evaluation(
        plan(runner(fakes, slow), every=1),
        RunFolder(tmp_path),
        None,
        lambda version, values: told.append((version, values["eval/exam/skipped"])),
    )
    for version in range(4):
        evaluation.new_weights(version)
        await asyncio.sleep(0)
    gate.set()
    await evaluation.finish(3)
    assert told == [(0, 0.0), (3, 2.0)]


async def test_an_evaluation_keeps_to_its_own_share_of_concurrency(tmp_path: Path, fakes: Any) -> None:
    flying = peak = 0

    async def answer(session: Any) -> Any:
        nonlocal flying, peak
        flying += 1
        peak = max(peak, flying)
        await asyncio.sleep(0.001)
        flying -= 1
        return fakes.turn("yes")

    made = plan(runner(fakes, answer, max_concurrency=3), examples=8)
    await versions_evaluated(RunFolder(tmp_path), made, [0], last=0)
    assert peak == 3


async def test_rollouts_of_old_evaluations_are_removed_where_the_plan_says_so(tmp_path: Path, fakes: Any) -> None:
    """Figures stay: without them a resumed run would evaluate again."""
    folder = RunFolder(tmp_path)
    kept = plan(runner(fakes, lambda session: fakes.turn("yes")), every=1, keep_rollouts=2)
    await versions_evaluated(folder, kept, [0, 1, 2, 3], last=3)
    assert [folder.evaluation_rollouts("exam", version).exists() for version in range(4)] == [False, False, True, True]
    assert folder.evaluated_steps("exam") == [0, 1, 2, 3]


async def test_average_and_pass_rate_count_examples_and_the_versions_seen(fakes: Any) -> None:
    answers = iter(["yes", "no", "no", "no", "yes", "yes"])
    versions = iter([3, 3, 4, 3, 3, 3])
    one = runner(fakes, lambda session: fakes.turn(next(answers), version=next(versions)))
    groups = [await one.run(index) for index in range(3)]
    assert groups[0].rollouts[1].trajectory_id == "eval-exam-000000/001"
    values = evaluation_metrics(groups, 1.0)
    assert values["avg@2"] == pytest.approx(0.5)
    assert values["pass@2"] == pytest.approx(2 / 3)
    assert (values["weights/oldest"], values["weights/newest"]) == (3.0, 4.0)
    assert (values["rollouts"], values["errors"], values["tokens_per_rollout"]) == (6.0, 0.0, 2.0)


async def test_an_evaluation_whose_rollouts_all_break_reports_errors_and_no_reward(fakes: Any) -> None:
    one = runner(fakes, lambda session: OSError("no engine"))
    assert evaluation_metrics([await one.run(0)], 1.0) == {"rollouts": 0.0, "errors": 2.0}


def orchestrator(folder: RunFolder, fakes: Any, *, steps: int, exam: Any = None) -> Orchestrator:
    section = OrchestratorSection(group_size=4, groups_per_step=2, max_async_level=0, steps=steps)
    follower = WeightFollower(Weights(), folder, wait_seconds=5)  # type: ignore[arg-type]
    environment = fakes.Environment(score=lambda text: float(text == "yes"))
    schedule = Schedule([WeightedEnvironment(environment)], seed=0)
    training = GroupRunner(
        fakes.executor(fakes.Mode(fakes.coin), schedule),
        schedule,
        group_size=4,
        max_concurrency=64,
        advantage_std=False,
        current_version=lambda: follower.version,
    )
    sinks = SinkSet({"jsonl": JsonlSink()})
    sinks.open(folder.root, {})
    exam = runner(fakes, exam or fakes.coin, version=lambda: follower.version)
    return Orchestrator(
        section,
        runner=training,
        folder=folder,
        follower=follower,
        sinks=sinks,
        renderer=None,
        evaluations=[plan(exam)],
    )


async def train(folder: RunFolder, first: int, until: int) -> None:
    for step in range(first, until):
        folder.write_weights_pointer(step, folder.weights / str(step))
        while folder.read_batch(step) is None:
            await asyncio.sleep(0.005)
        folder.write_trained(step, {"loss": 0.5})
    folder.write_weights_pointer(until, folder.weights / str(until))


async def run(folder: RunFolder, fakes: Any, *, first: int = 0, steps: int, exam: Any = None) -> None:
    trainer = asyncio.create_task(train(folder, first, steps))
    try:
        await orchestrator(folder, fakes, steps=steps, exam=exam).run()
    finally:
        trainer.cancel()


def evaluated(folder: RunFolder) -> list[int]:
    return sorted(int(row["step"]) for row in read_metrics(folder.metrics) if "eval/exam/avg@2" in row)


async def test_evaluations_reach_the_sinks_at_their_step_and_training_goes_on(tmp_path: Path, fakes: Any) -> None:
    folder = RunFolder(tmp_path)
    await run(folder, fakes, steps=5)
    rows = read_metrics(folder.metrics)
    assert [int(row["step"]) for row in rows if not is_evaluation(row)] == [0, 1, 2, 3, 4]
    assert evaluated(folder) == [0, 2, 4, 5]
    lines = folder.evaluation_rollouts("exam", 5).read_text().splitlines()
    assert [json.loads(line)["trajectory_id"] for line in lines][:2] == ["eval-exam-000000/000", "eval-exam-000000/001"]
    trained = [sample.trajectory_id for step in folder.batch_steps() for sample in folder.read_batch(step).samples]  # type: ignore[union-attr]
    assert trained
    assert not any(name.startswith("eval-") for name in trained)


async def test_training_does_not_wait_for_a_slow_evaluation(tmp_path: Path, fakes: Any) -> None:
    folder = RunFolder(tmp_path)
    seen: list[int] = []

    async def slow(session: Any) -> Any:
        while not folder.batch_steps() or folder.batch_steps()[-1] < 2:  # it ends only when training went on
            await asyncio.sleep(0.005)
        seen.append(folder.batch_steps()[-1])
        return fakes.turn("yes")

    await asyncio.wait_for(run(folder, fakes, steps=3, exam=slow), 60)
    assert seen
    assert 0 in evaluated(folder)


async def test_a_resumed_run_reports_each_evaluation_once(tmp_path: Path, fakes: Any) -> None:
    folder = RunFolder(tmp_path)
    await run(folder, fakes, steps=2)
    assert evaluated(folder) == [0, 2]
    await run(folder, fakes, first=2, steps=4)
    assert evaluated(folder) == [0, 2, 4]
    assert [int(row["step"]) for row in read_metrics(folder.metrics) if not is_evaluation(row)] == [0, 1, 2, 3]
