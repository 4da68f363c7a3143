"""The trainer's loop: batches in order, weights out, checkpoints, and an end that is not a hang."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from prl.types import MicroBatch, TrainingSample
from prl_train.distributed import World
from prl_train.launch.beside import train_beside
from prl_train.launch.train_loop import TrainLoop
from prl_train.orchestrator.loop import Outcome
from prl_train.run import PeerError, Progress, RunFolder, StepBatch


class FakeTrainer:
    """Counts steps; its weights are that count."""

    def __init__(self, **settings: Any) -> None:
        self.world = World()
        self.config = SimpleNamespace(**{"seq_len": 64, "checkpoint_every": 2, "keep_checkpoints": 2, **settings})
        self.count = 0
        self.published: list[int] = []
        self.seen: list[list[MicroBatch]] = []

    def load(self) -> None:
        self.count = 0

    def step(self, micro_batches: list[MicroBatch]) -> dict[str, float]:
        self.count += 1
        self.seen.append(micro_batches)
        return {"loss": float(self.count), "step": float(self.count)}

    def publish_weights(self, directory: Path, version: int) -> Path:
        self.published.append(version)
        target = directory / f"version_{version:06d}"
        target.mkdir(parents=True)
        return target

    def save_checkpoint(self, directory: Path, extra: dict[str, Any], *, then: Callable[[], None]) -> Path:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "state.json").write_text(json.dumps({"count": self.count}))
        then()
        return directory

    def finish_checkpoint(self) -> None:
        """Nothing is written in the background."""

    def load_checkpoint(self, directory: Path) -> dict[str, Any]:
        self.count = json.loads((directory / "state.json").read_text())["count"]
        return {}


def make(folder: RunFolder, trainer: FakeTrainer, *, steps: int, **options: Any) -> TrainLoop:
    settings = {"max_async_level": 0, "wait_seconds": 5.0, **options}
    return TrainLoop(trainer, folder, steps=steps, **settings)  # type: ignore[arg-type]


def batch(step: int, samples: int = 2) -> StepBatch:
    one = TrainingSample(
        prompt_ids=[1, 2],
        completion_ids=[3, 4],
        completion_mask=[True, True],
        completion_logprobs=[-0.1, -0.2],
        temperatures=[1.0, 1.0],
        advantage=1.0,
    )
    return StepBatch(step=step, samples=[one] * samples, metrics={}, progress=Progress())


def filled(tmp_path: Path, steps: int) -> RunFolder:
    folder = RunFolder(tmp_path)
    for step in range(steps):
        folder.write_batch(batch(step))
    return folder


def test_each_batch_is_trained_once_and_its_weights_published(tmp_path: Path) -> None:
    folder, trainer = filled(tmp_path, 3), FakeTrainer()
    assert make(folder, trainer, steps=3).run(threading.Event()) == 3
    assert trainer.published == [0, 1, 2, 3]
    assert folder.latest_weights() == (3, str((folder.weights / "version_000003").resolve()))
    assert [folder.read_trained(step)["loss"] for step in range(3)] == [1.0, 2.0, 3.0]  # type: ignore[index]
    assert folder.latest_checkpoint() == (3, folder.checkpoints / "step_000003")
    assert [len(batches) for batches in trainer.seen] == [1, 1, 1]
    kept = sorted(path.name for path in folder.weights.glob("version_*"))
    assert kept == ["version_000002", "version_000003"]


def test_an_interrupted_run_goes_on_from_its_checkpoint_with_the_batches_that_are_there(tmp_path: Path) -> None:
    folder, first, second = filled(tmp_path, 6), FakeTrainer(), FakeTrainer()
    first_stop = threading.Event()

    def crash(micro_batches: list[MicroBatch]) -> dict[str, float]:
        if first.count == 3:
            raise KeyboardInterrupt
        first.count += 1
        return {"loss": float(first.count), "step": float(first.count)}

    first.step = crash  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        make(folder, first, steps=6).run(first_stop)
    assert folder.latest_checkpoint() == (2, folder.checkpoints / "step_000002")
    make(folder, second, steps=6).run(threading.Event())
    assert second.count == 6
    assert [folder.read_trained(step)["loss"] for step in range(6)] == [1, 2, 3, 4, 5, 6]  # type: ignore[index]
    # Version 3 was out already: the engine may be reading it, so it is not written again.
    assert second.published == [4, 5, 6]


class FakeBroadcast:
    """Sends the versions it was told to; `wants` is what engines want in a directory."""

    def __init__(self, *, fails: tuple[int, ...] = ()) -> None:
        self.fails = fails
        self.sent: list[int] = []
        self.wants: int | None = None
        self.closed = False

    def send(self, version: int, is_over: Callable[[], bool]) -> bool:
        assert not is_over()
        self.sent.append(version)
        return version not in self.fails

    def wanted(self) -> int | None:
        return self.wants

    def close(self) -> None:
        self.closed = True


def test_versions_are_sent_but_for_the_first_the_checkpoints_and_the_last(tmp_path: Path) -> None:
    """A resumed run, a later engine and the user of the result need directories."""
    folder, trainer, broadcast = filled(tmp_path, 7), FakeTrainer(checkpoint_every=3), FakeBroadcast(fails=(2,))
    make(folder, trainer, steps=7, broadcast=broadcast).run(threading.Event())
    assert broadcast.sent == [1, 2, 4, 5]
    assert trainer.published == [0, 2, 3, 6, 7], "version 2 could not be sent"
    assert folder.latest_weights() == (7, str((folder.weights / "version_000007").resolve()))
    assert broadcast.closed


def test_a_directory_that_an_engine_wants_is_written_while_the_trainer_waits_for_a_batch(tmp_path: Path) -> None:
    """The engine that wants it may be the only one: without it, the batch would never come."""
    folder, trainer, broadcast = filled(tmp_path, 1), FakeTrainer(checkpoint_every=0), FakeBroadcast()
    stop = threading.Event()
    thread = threading.Thread(target=make(folder, trainer, steps=3, broadcast=broadcast).run, args=(stop,))
    thread.start()
    while broadcast.sent != [1]:
        stop.wait(0.005)
    broadcast.wants = 1
    while folder.latest_weights() is None or folder.latest_weights()[0] < 1:  # type: ignore[index]
        stop.wait(0.005)
    for step in (1, 2):
        folder.write_batch(batch(step))
    thread.join(60)
    assert trainer.published == [0, 1, 3], "what is written already is not written again"
    assert broadcast.sent == [1, 2]


def test_a_run_that_ends_early_leaves_its_last_weights_in_a_directory(tmp_path: Path) -> None:
    folder, trainer = filled(tmp_path, 2), FakeTrainer(checkpoint_every=0)
    folder.status.set("orchestrator", "done")
    broadcast = FakeBroadcast(fails=(1, 2))
    broadcast.send = lambda version, is_over: not broadcast.sent.append(version)  # type: ignore[method-assign,func-returns-value,assignment]
    assert make(folder, trainer, steps=9, broadcast=broadcast).run(threading.Event()) == 2
    assert trainer.published == [0, 2]


def test_warm_up_comes_before_the_first_weights_and_not_again_after_a_checkpoint(tmp_path: Path) -> None:
    folder, warmed = filled(tmp_path, 2), []
    make(folder, FakeTrainer(), steps=2, warm_up=lambda trainer: warmed.append(trainer.published.copy())).run(
        threading.Event()
    )
    assert warmed == [[]]
    make(folder, FakeTrainer(), steps=2, warm_up=lambda trainer: warmed.append([99])).run(threading.Event())
    assert warmed == [[]]


def test_a_batch_without_samples_changes_nothing_but_counts(tmp_path: Path) -> None:
    folder, trainer = RunFolder(tmp_path), FakeTrainer()
    folder.write_batch(batch(0, samples=0))
    make(folder, trainer, steps=1).run(threading.Event())
    assert trainer.count == 0
    assert folder.read_trained(0)["step_skipped"] == 1.0  # type: ignore[index]
    assert trainer.published == [0, 1]


def test_steps_of_the_optimizer_are_not_taken_for_steps_of_the_run(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.write_batch(batch(0, samples=0))
    folder.write_batch(batch(1))
    make(folder, FakeTrainer(), steps=2).run(threading.Event())
    trained = folder.read_trained(1)
    assert trained is not None
    assert "step" not in trained
    assert trained["optimizer_steps"] == 1.0


def test_samples_too_long_for_a_row_are_cut_or_dropped_and_counted(tmp_path: Path) -> None:
    folder, trainer = filled(tmp_path, 1), FakeTrainer(seq_len=3)
    make(folder, trainer, steps=1).run(threading.Event())
    assert folder.read_trained(0)["samples/truncated"] == 2.0  # type: ignore[index]
    assert all(len(row.input_ids) == 3 for row in trainer.seen[0])


def test_a_checkpoint_is_not_removed_for_one_that_a_killed_run_left_beyond_it(tmp_path: Path) -> None:
    """Killed between writing a checkpoint and pointing to it, then stopped on the way there: the pointer must hold."""
    folder = filled(tmp_path, 4)
    folder.write_checkpoint_pointer(2, folder.checkpoints / "step_000002")
    for step in (2, 4):
        (folder.checkpoints / f"step_{step:06d}").mkdir(parents=True)
        (folder.checkpoints / f"step_{step:06d}" / "state.json").write_text(f'{{"count": {step}}}')
    stop = threading.Event()
    loop = make(folder, trainer := FakeTrainer(keep_checkpoints=1), steps=9)
    trainer.step = lambda rows: stop.set() or {"loss": 0.0, "step": 1.0}  # type: ignore[method-assign, func-returns-value]
    assert loop.run(stop) == 3
    assert folder.latest_checkpoint() == (3, folder.checkpoints / "step_000003")
    assert (folder.checkpoints / "step_000003").is_dir()


async def test_a_trainer_that_repeats_batches_after_a_resume_is_waited_for(tmp_path: Path) -> None:
    """Else the last checkpoint would hold fewer batches than the last weights, of a run that says it is done."""
    folder = filled(tmp_path, 4)
    trainer = FakeTrainer()
    loop = make(folder, trainer, steps=9)

    async def is_done_at_once() -> Outcome:
        return Outcome(steps=4)

    assert await train_beside(folder, loop.run, is_done_at_once()) == Outcome(steps=4)
    assert (trainer.count, folder.latest_checkpoint()) == (4, (4, folder.checkpoints / "step_000004"))


async def test_what_ends_the_trainer_ends_the_run(tmp_path: Path) -> None:
    def fails(stop: threading.Event) -> None:
        raise PeerError("out of memory")

    async def waits() -> Outcome:
        await asyncio.sleep(60)
        raise AssertionError

    with pytest.raises(PeerError, match="out of memory"):
        await asyncio.wait_for(train_beside(RunFolder(tmp_path), fails, waits()), 60)


def test_a_finished_or_failed_orchestrator_ends_the_wait(tmp_path: Path) -> None:
    folder = filled(tmp_path, 1)
    folder.status.set("orchestrator", "done")
    assert make(folder, FakeTrainer(), steps=5).run(threading.Event()) == 1
    folder.status.set("orchestrator", "failed", "the engine is gone")
    with pytest.raises(PeerError, match="the orchestrator failed: the engine is gone"):
        make(folder, FakeTrainer(), steps=5).run(threading.Event())


def test_silence_is_an_error_after_the_wait_and_a_stop_is_not(tmp_path: Path) -> None:
    folder = filled(tmp_path, 1)
    with pytest.raises(PeerError, match="batch 1 did not come"):
        make(folder, FakeTrainer(), steps=5, wait_seconds=0.05).run(threading.Event())
    stop = threading.Event()
    stop.set()
    assert make(folder, FakeTrainer(), steps=5).run(stop) == 0
