"""The trainer as several processes: the same batches give the same numbers, and a killed run goes on."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fixtures.crash_points import KILLED
from fixtures.forks import Forks

from prl.types import TrainingSample
from prl_train.run import Progress, RunFolder, StepBatch
from prl_train.run.metrics import read_metrics

pytestmark = pytest.mark.heavy

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "prl.cli.main")
TIMES = ("seconds", "tokens_per_second", "memory_gb", "time/train_s")
SECONDS = 300.0
Run = Callable[..., None]


def forked(forks: Forks, log: Path, *words: str) -> None:
    """Run a `prl` command to its end, which must be a good one."""
    child = forks.start("prl.cli.main:main", words, log=log)
    try:
        assert child.wait(SECONDS) == 0, log.read_text()
    finally:
        child.end()


def launched(log: Path, *words: str) -> None:
    """Run a `prl` command in two processes of torchrun's."""
    with log.open("wb") as out:
        child = subprocess.Popen(
            [sys.executable, *TORCHRUN, *words],
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    try:
        assert child.wait(SECONDS) == 0, log.read_text()
    finally:
        child.kill()
        child.wait()


def batch(step: int) -> StepBatch:
    """Return random samples, of which an odd number of rows comes."""
    chance = random.Random(step)
    samples = []
    for number in range(7):
        prompt, completion = chance.randint(2, 20), chance.randint(2, 30)
        samples.append(
            TrainingSample(
                prompt_ids=[chance.randrange(500) for _ in range(prompt)],
                completion_ids=[chance.randrange(500) for _ in range(completion)],
                completion_mask=[True] * completion,
                completion_logprobs=[-chance.uniform(4.0, 7.0) for _ in range(completion)],
                temperatures=[1.0] * completion,
                advantage=chance.choice([-1.0, 0.5]),
                trajectory_id=str(number),
            )
        )
    return StepBatch(step=step, samples=samples, metrics={}, progress=Progress())


def train_given(tmp_path: Path, name: str, run: Run, options: tuple[str, ...]) -> list[dict[str, float]]:
    """Run `prl trainer` on given batches; return what it measured on each."""
    folder = RunFolder(tmp_path / name)
    folder.claim()
    made = tmp_path / "alone" / "model"
    if made.is_dir():  # the same seed makes the same model; once is enough
        shutil.copytree(made, folder.model)
    for step in range(2):
        folder.write_batch(batch(step))
    run(tmp_path / f"{name}.log", "trainer", *options, f"run.directory={folder.root}")
    published = folder.latest_weights()
    assert published is not None
    assert published[0] == 2
    assert (Path(published[1]) / "model.safetensors").is_file()
    trained: list[Any] = [folder.read_trained(step) for step in range(2)]
    return [{key: value for key, value in one.items() if key not in TIMES} for one in trained]


def test_the_same_batches_give_the_same_numbers(
    forks: Forks, tmp_path: Path, quickstart: Path, short: tuple[str, ...]
) -> None:
    """However the processes come about: one, two of prl's own, or two of torchrun's."""
    common = ("-c", str(quickstart), *short, "orchestrator.steps=2", "warmup.steps=2", "trainer.seq_len=64")
    run = partial(forked, forks)
    alone = train_given(tmp_path, "alone", run, common)
    own = train_given(tmp_path, "own", run, (*common, "trainer.processes=2"))
    torchruns = train_given(tmp_path, "torchrun", launched, common)
    assert alone[0]["micro_batches"] > 1
    for one, mine, theirs in zip(alone, own, torchruns, strict=True):
        assert mine == pytest.approx(one, rel=1e-5, abs=1e-6)
        assert theirs == pytest.approx(one, rel=1e-5, abs=1e-6)


def test_a_killed_run_on_two_processes_goes_on_and_learns_as_one_does(
    forks: Forks, tmp_path: Path, quickstart: Path, short: tuple[str, ...]
) -> None:
    # One rollout at a time, so that float32 sums do not depend on the timing of the engine's batches.
    common = ("rl", "-c", str(quickstart), *short, "orchestrator.max_concurrency=1", "orchestrator.steps=5")
    alone, two = RunFolder(tmp_path / "alone"), RunFolder(tmp_path / "two")
    forked(forks, tmp_path / "alone.log", *common, f"run.directory={alone.root}")
    on_two = (*common, f"run.directory={two.root}", "trainer.processes=2")
    at = ("os.rename", "batches/batch_000003.msgpack")
    arguments = (str(two.root), at, str(tmp_path / "seen.json"), on_two)
    killed = forks.start("fixtures.crash_points:run", *arguments, log=tmp_path / "killed.log")
    assert killed.wait(SECONDS) == KILLED
    assert two.read_batch(2) is not None
    assert two.read_batch(3) is None
    forked(forks, tmp_path / "again.log", *on_two, "--resume")
    rows, expected = read_metrics(two.metrics), read_metrics(alone.metrics)
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4]
    assert [row["reward"] for row in rows] == [row["reward"] for row in expected]
    for name in ("loss", "grad_norm", "entropy"):
        mine, theirs = ([row[name] for row in both if name in row] for both in (rows, expected))
        assert mine == pytest.approx(theirs, rel=1e-3, abs=1e-5)
        assert len(mine) >= 4
