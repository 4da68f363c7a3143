"""Rollouts on Ray workers are those of the orchestrator's own process, and a run trains on them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fixtures.ports import free_port

from prl.contracts import RolloutJob
from prl.plugin import create
from prl.types import Rollout
from prl_train.launch.open_run import begin_run
from prl_train.launch.parts import check_names, load_parts
from prl_train.launch.workers import worker_spec
from prl_train.run import RunFolder
from prl_train.run.metrics import read_metrics

from .conftest import Configure, Prl

pytest.importorskip("ray")
pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture
def engine(tmp_path: Path, port: int, configure: Configure) -> Iterator[Any]:
    """A served engine with the quickstart's model, and the parts of a run on it."""
    config = configure(tmp_path / "run", f"engine.url=http://127.0.0.1:{port}")
    parts = load_parts(config, begin_run(config), check_names(config))
    words = ["serve", "--engine", "local", "--model", parts.model, "--port", str(port), "--threads", "1"]
    with (tmp_path / "engine.log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "prl.cli.main", *words],
            stdout=log,
            stderr=log,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    try:
        wait_until_ready(port, server)
        yield parts
    finally:
        server.terminate()
        server.wait(timeout=60)


def wait_until_ready(port: int, server: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        assert server.poll() is None, "the engine ended"
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2):
                return
        except OSError:
            time.sleep(0.2)
    raise AssertionError("the engine did not come up")


def sampled(rollouts: list[Rollout]) -> list[Any]:
    return [
        (one.trajectory_id, one.error, one.reward, [(turn.prompt_ids, turn.completion_ids) for turn in one.turns])
        for one in rollouts
    ]


async def play(name: str, parts: Any, **options: Any) -> list[Rollout]:
    executor = create("executor", name, **options)
    jobs = [RolloutJob(group=group, member=member, cache_salt="start") for group in range(6) for member in range(4)]
    try:
        await executor.start(worker_spec(parts))
        return list(await asyncio.gather(*(executor.play(job) for job in jobs)))
    finally:
        await executor.close()


def test_ray_and_the_local_executor_play_the_same_rollouts_and_a_run_trains_on_them(
    engine: Any, tmp_path: Path, port: int, short: tuple[str, ...], prl: Prl, on_model: Callable[[str], Path]
) -> None:
    here = sampled(asyncio.run(play("local", engine)))
    there = sampled(asyncio.run(play("ray", engine, num_workers=2, cpus_per_worker=0.5)))
    assert here == there
    assert len({str(turns) for _, _, _, turns in here}) > 6, "rollouts that are all alike prove nothing"
    told = prl(
        "rl",
        "-c",
        str(on_model(engine.model)),
        *(word for word in short if not word.startswith("model.scratch")),
        f"run.directory={tmp_path / 'rl'}",
        f"engine.url=http://127.0.0.1:{port}",
        'executor="ray"',
        "executor_options.num_workers=2",
        "executor_options.cpus_per_worker=0.5",
        "orchestrator.steps=3",
    )
    assert told.code == 0, told.stderr
    rows = read_metrics(RunFolder(tmp_path / "rl").metrics)
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert all(row["samples_per_rollout"] == 1.0 and row["breaks"] == 0.0 for row in rows)
    assert max(row.get("max_logprob_diff", 0.0) for row in rows) < 1e-3
