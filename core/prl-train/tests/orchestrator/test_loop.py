"""The orchestrator's loop against a run folder whose trainer is played by the test."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from prl_train.config import OrchestratorSection
from prl_train.filters.difficulty import DifficultyFilter, DifficultyOptions
from prl_train.orchestrator import Orchestrator, Schedule, WeightedEnvironment
from prl_train.orchestrator.filtering import FilterSet
from prl_train.orchestrator.groups import GroupRunner
from prl_train.orchestrator.loop import Outcome
from prl_train.orchestrator.sinks import SinkSet
from prl_train.orchestrator.weights import WeightFollower
from prl_train.run import DeadStateError, PeerError, RunError, RunFolder, StepBatch
from prl_train.run.metrics import read_metrics
from prl_train.run.sinks import JsonlSink


class Engine:
    """Records which weights it was told to load."""

    def __init__(self) -> None:
        self.loaded: list[int] = []

    async def load_weights(self, directory: str, version: int) -> None:
        self.loaded.append(version)


async def play_trainer(folder: RunFolder, *, first: int, until: int) -> None:
    """Publish a version, wait for the batch, record it as trained, and so on; as `prl trainer` does."""
    for step in range(first, until):
        folder.write_weights_pointer(step, folder.weights / str(step))
        while folder.read_batch(step) is None:
            await asyncio.sleep(0.005)
        folder.write_trained(step, {"loss": 0.5})
    folder.write_weights_pointer(until, folder.weights / str(until))


def make(folder: RunFolder, fakes: Any, *, score: Any = None, answer: Any = None, **settings: Any) -> Any:
    filters, examples = settings.pop("filters", None), settings.pop("examples", None)
    section = OrchestratorSection(**{"group_size": 4, "groups_per_step": 2, "max_async_level": 0, **settings})
    environment = fakes.Environment(score=score or (lambda text: float(text == "yes")), examples=examples)
    follower = WeightFollower(Engine(), folder, wait_seconds=5)  # type: ignore[arg-type]
    schedule = Schedule([WeightedEnvironment(environment)], seed=0)
    runner = GroupRunner(
        fakes.executor(fakes.Mode(answer or fakes.coin), schedule),
        schedule,
        group_size=section.group_size,
        max_concurrency=64,
        advantage_std=False,
        current_version=lambda: follower.version,
        filters=None if filters is None else filters(),
    )
    sinks = SinkSet({"jsonl": JsonlSink()})
    sinks.open(folder.root, {})
    return Orchestrator(section, runner=runner, folder=folder, follower=follower, sinks=sinks, renderer=None)


async def run(folder: RunFolder, fakes: Any, *, first: int = 0, until: int, **settings: Any) -> Outcome:
    trainer = asyncio.create_task(play_trainer(folder, first=first, until=until))
    try:
        return await make(folder, fakes, **settings).run()
    finally:
        trainer.cancel()


def batches(folder: RunFolder) -> list[StepBatch]:
    found = [folder.read_batch(step) for step in folder.batch_steps()]
    return [batch for batch in found if batch is not None]


def without_times(batch: StepBatch) -> Any:
    timed = ("time", "throughput", "event_loop")
    figures = {name: value for name, value in batch.metrics.items() if not name.startswith(timed)}
    return (batch.step, batch.samples, batch.progress, figures)


async def test_every_step_is_sampled_by_its_own_weights_and_reported_once(tmp_path: Path, fakes: Any) -> None:
    folder = RunFolder(tmp_path)
    outcome = await run(folder, fakes, until=4, steps=4)
    assert outcome == Outcome(steps=4)
    assert [batch.step for batch in batches(folder)] == [0, 1, 2, 3]
    assert all(sample.weight_version == batch.step for batch in batches(folder) for sample in batch.samples)
    rows = read_metrics(folder.metrics)
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    assert {(row["samples_per_rollout"], row["breaks"], row["loss"], row["off_policy_lag"]) for row in rows} == {
        (1.0, 0.0, 0.5, 0.0)
    }
    lines = [json.loads(line) for line in folder.rollout_path(2).read_text().splitlines()]
    assert [line["trajectory_id"] for line in lines] == [f"group-{g:06d}/{m:03d}" for g in (4, 5) for m in range(4)]


async def test_a_resumed_run_makes_the_batches_of_an_uninterrupted_one(tmp_path: Path, fakes: Any) -> None:
    whole, parts = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "parts")
    await run(whole, fakes, until=6, steps=6)
    await run(parts, fakes, until=3, steps=3)
    await run(parts, fakes, first=3, until=6, steps=6)
    assert [without_times(batch) for batch in batches(parts)] == [without_times(batch) for batch in batches(whole)]
    assert [row["step"] for row in read_metrics(parts.metrics)] == [0, 1, 2, 3, 4, 5]


async def test_an_asynchronous_run_never_trains_on_older_weights_than_allowed(tmp_path: Path, fakes: Any) -> None:
    folder = RunFolder(tmp_path)

    async def slow(session: Any) -> Any:
        version = fakes.version(session)
        await asyncio.sleep(0.001 * (session.seed % 30))
        return fakes.turn("yes" if session.seed % 2 else "no", version=version)

    await run(folder, fakes, until=8, steps=8, max_async_level=2, answer=slow)
    lags = {batch.step - sample.weight_version for batch in batches(folder) for sample in batch.samples}
    assert max(lags) <= 2
    assert lags & {1, 2}, "nothing was sampled ahead: the run was synchronous"


async def test_equal_rewards_for_many_batches_stop_the_run_and_say_so(tmp_path: Path, fakes: Any) -> None:
    folder = RunFolder(tmp_path)
    with pytest.raises(DeadStateError) as caught:
        await run(folder, fakes, until=20, steps=20, dead_after=3, score=lambda text: 0.0)
    assert "3 batches in a row had no learning signal" in caught.value.what
    assert "malformed answers" in caught.value.next_step
    assert [len(batch.samples) for batch in batches(folder)] == [0, 0, 0]


async def test_a_solved_task_ends_the_run_without_an_error(tmp_path: Path, fakes: Any) -> None:
    folder = RunFolder(tmp_path)

    def learns(session: Any) -> Any:
        return fakes.turn("yes", version=fakes.version(session)) if fakes.version(session) else fakes.coin(session)

    outcome = await run(folder, fakes, until=20, steps=20, dead_after=3, answer=learns)
    assert outcome.steps == 4
    assert "nothing is left to learn" in outcome.note
    assert [row["step"] for row in read_metrics(folder.metrics)] == [0, 1, 2, 3]


async def test_a_dead_trainer_ends_the_wait_for_its_weights(tmp_path: Path, fakes: Any) -> None:
    folder = RunFolder(tmp_path)
    folder.status.set("trainer", "failed", "out of memory")
    with pytest.raises(PeerError, match="the trainer failed: out of memory"):
        await make(folder, fakes, steps=2).run()


async def test_silence_of_the_trainer_is_an_error_after_the_wait(tmp_path: Path, fakes: Any) -> None:
    orchestrator = make(RunFolder(tmp_path), fakes, steps=2)
    orchestrator.follower.wait_seconds = 0.05
    with pytest.raises(PeerError, match="no weights newer than version -1"):
        await orchestrator.run()


async def test_batches_before_the_newest_checkpoint_are_removed_when_reported(tmp_path: Path, fakes: Any) -> None:
    folder = RunFolder(tmp_path)
    folder.write_checkpoint_pointer(3, folder.checkpoints / "step_000003")
    await run(folder, fakes, until=5, steps=5)
    assert folder.batch_steps() == [2, 3, 4]
    assert folder.trained_steps() == [2, 3, 4], "a file a step, for ever"
    assert [row["loss"] for row in read_metrics(folder.metrics)] == [0.5] * 5, "removed before it was reported"


async def test_a_run_whose_metrics_were_lost_reports_what_is_left(tmp_path: Path, fakes: Any) -> None:
    """Waiting for the measures of pruned steps, it would report nothing to the end, and prune nothing."""
    folder = RunFolder(tmp_path)
    folder.write_checkpoint_pointer(3, folder.checkpoints / "step_000003")
    await run(folder, fakes, until=5, steps=5)
    folder.metrics.unlink()
    await run(folder, fakes, first=5, until=7, steps=7)
    assert [row["step"] for row in read_metrics(folder.metrics)] == [2, 3, 4, 5, 6]


async def test_rollouts_of_old_steps_are_removed_where_the_run_says_so(tmp_path: Path, fakes: Any) -> None:
    """They are the one thing in a run folder that only grows."""
    folder = RunFolder(tmp_path)
    await run(folder, fakes, until=5, steps=5, keep_rollouts=2)
    assert folder.rollout_steps() == [3, 4]
    await run(RunFolder(tmp_path / "all"), fakes, until=3, steps=3)
    assert RunFolder(tmp_path / "all").rollout_steps() == [0, 1, 2]


async def test_tasks_that_cannot_be_had_stop_the_run_by_name(tmp_path: Path, fakes: Any) -> None:
    """Also where a filter asks for the example before it is played."""
    orchestrator = make(RunFolder(tmp_path), fakes, steps=2, filters=solved)

    def example(index: int) -> Any:
        raise FileNotFoundError(f"row {index} is gone")

    orchestrator.runner.schedule.environments[0].environment.example = example
    RunFolder(tmp_path).write_weights_pointer(0, tmp_path)
    with pytest.raises(RunError) as caught:
        await asyncio.wait_for(orchestrator.run(), 60)
    assert "every rollout of 3 groups in a row failed" in caught.value.what
    assert "FileNotFoundError: row 2 is gone" in caught.value.what
    assert caught.value.where == "environment 'scripted', example 'scripted/2'"


def solved() -> FilterSet:
    options = DifficultyOptions(equal_rewards=False, solved_in_a_row=2, solved_share=0.0, solved_reward=0.75)
    return FilterSet({"difficulty": DifficultyFilter(options)})


async def test_solved_examples_are_left_out_and_a_resumed_run_still_knows_them(tmp_path: Path, fakes: Any) -> None:
    def answer(session: Any) -> Any:
        easy = session.task % 2 == 0
        return fakes.turn("yes" if easy or session.seed % 2 else "no", version=fakes.version(session))

    whole, parts = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "parts")
    common = {"answer": answer, "examples": 4, "filters": solved}
    await run(whole, fakes, until=8, steps=8, **common)
    await run(parts, fakes, until=4, steps=4, **common)
    await run(parts, fakes, first=4, until=8, steps=8, **common)
    assert [without_times(batch) for batch in batches(parts)] == [without_times(batch) for batch in batches(whole)]
    played = [json.loads(line)["example_id"] for step in range(5, 8) for line in read_lines(whole, step)]
    assert not {"scripted/0", "scripted/2"} & set(played), "both are always solved"
    assert batches(whole)[-1].progress.filters["difficulty"]["solved"]["scripted/0"] == 2
    assert sum(batch.metrics["groups/skipped"] for batch in batches(whole)) > 0


def read_lines(folder: RunFolder, step: int) -> list[str]:
    return folder.rollout_path(step).read_text().splitlines()
