"""A worker in another process, made from JSON alone, plays the very rollouts of the orchestrator's own process."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from engines.local import LocalServer

from prl.client import EnginePool
from prl.config import load_config
from prl.contracts import RolloutJob, WorkerSpec
from prl.types import Rollout
from prl_train.config import RLConfig
from prl_train.executor import LocalExecutor, decode_rollout
from prl_train.executor.shared import share_engine
from prl_train.launch.engines import make_pool, until_up
from prl_train.launch.open_run import begin_run, use_plugins
from prl_train.launch.parts import check_names, load_parts
from prl_train.launch.workers import worker_spec

pytestmark = pytest.mark.heavy

CHILD = """
import asyncio, json, sys
from prl.contracts import RolloutJob, WorkerSpec
from prl_train.executor import encode_rollout
from prl.plugin.worker import make_worker

async def main():
    worker = make_worker(WorkerSpec(**json.loads(sys.stdin.readline())))
    await worker.start()
    for line in sys.stdin:
        data = encode_rollout(await worker.play(RolloutJob(**json.loads(line))))
        sys.stdout.buffer.write(len(data).to_bytes(4, "big") + data)
    await worker.close()

asyncio.run(main())
"""
EXTRA = """
[[evaluations]]
name = "words"
environment = "reverse-text"
sampling = { temperature = 0.5, max_tokens = 6 }
"""
JOBS = [
    RolloutJob(group=group, member=member, cache_salt="weights-0", evaluation=evaluation)
    for evaluation in (None, "words")
    for group in (0, 5)
    for member in (0, 1)
]


def config_of(tmp_path: Path, quickstart: Path, port: int) -> RLConfig:
    path = tmp_path / "run.toml"
    path.write_text(quickstart.read_text() + EXTRA)
    overrides = ["model.scratch.tokenizer_examples=64", f"run.directory={tmp_path / 'run'}"]
    return load_config(RLConfig, path, [*overrides, f"engine.url=http://127.0.0.1:{port}"])


async def here(spec: WorkerSpec, pool: EnginePool) -> list[Rollout]:
    executor = LocalExecutor()
    with share_engine(pool) as key:
        await executor.start(WorkerSpec(target=spec.target, settings={**spec.settings, "engine_key": key}))
        played = [await executor.play(job) for job in JOBS]
        await executor.close()
    return played


def elsewhere(spec: WorkerSpec) -> list[Rollout]:
    lines = [json.dumps(asdict(value)) for value in (spec, *JOBS)]
    done = subprocess.run(
        [sys.executable, "-c", CHILD], input="\n".join(lines).encode(), capture_output=True, timeout=60
    )
    assert done.returncode == 0, done.stderr.decode()
    played: list[Rollout] = []
    data = done.stdout
    while data:
        size = int.from_bytes(data[:4], "big")
        played.append(decode_rollout(data[4 : 4 + size]))
        data = data[4 + size :]
    return played


def test_a_worker_elsewhere_plays_the_same_rollouts(tmp_path: Path, quickstart: Path) -> None:
    config = config_of(tmp_path, quickstart, 9)
    use_plugins(config)
    parts = load_parts(config, begin_run(config), check_names(config))
    server = LocalServer(Path(parts.model), max_model_len=256)
    try:
        settings: dict[str, Any] = json.loads(json.dumps(worker_spec(parts).settings))
        settings["engine"]["url"] = server.url
        spec = WorkerSpec(target=worker_spec(parts).target, settings=settings)
        local = asyncio.run(play_here(spec, config, server.url))
        remote = elsewhere(spec)
    finally:
        server.stop()
    assert [one.error for one in local] == [None] * len(JOBS)
    assert remote == local
    assert {one.environment for one in remote} == {"number-guessing", "reverse-text"}
    assert [one.turns[0].temperature for one in remote] == [1.0] * 4 + [0.5] * 4
    assert len({tuple(one.turns[0].completion_ids) for one in remote}) > 4, "the seeds made no difference"


async def play_here(spec: WorkerSpec, config: RLConfig, url: str) -> list[Rollout]:
    pool = make_pool(config.engine.model_copy(update={"url": url}))
    await until_up(pool, config.engine)
    try:
        return await here(spec, pool)
    finally:
        await pool.close()
