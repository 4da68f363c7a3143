"""A small run of three processes that tests kill, stop and start again, and what it must prove at the end."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prl_train.run import RunFolder, decode_batch
from prl_train.run.metrics import read_metrics

GROUPS, SIZE, TURNS = 2, 4, 3
EXACT = 1e-3  # the largest |engine - trainer| log-probability that rounding explains; other weights give 0.1 and more
CONFIG = """
renderer = "qwen3"
client_mode = "renderer"
sinks = []
[renderer_options]
thinking_retention = "all"
[run]
directory = "{directory}"
report = false
wait_seconds = 120.0
[model]
path = "{model}"
[engine]
url = "http://127.0.0.1:{port}"
health_seconds = 0.3
ask_again_seconds = 1.0
[[environments]]
name = "talk"
[sampling]
max_tokens = 6
[orchestrator]
steps = {steps}
group_size = 4
groups_per_step = 2
max_async_level = 0
truncated_turn = "continue"
[trainer]
seq_len = 512
lr = 3e-3
warmup_steps = 0
checkpoint_every = 2
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Child:
    """One process of a run, by its own id; its output is kept in a file."""

    def __init__(self, site: Path, log: Path, *words: str) -> None:
        self.log = log
        self.may_fail = False
        paths = [str(site), *filter(None, [os.environ.get("PYTHONPATH")])]
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "prl.cli.main", *words],
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)},
            )

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """End it as a machine that dies does: nothing of its own runs any more."""
        self.may_fail = True
        self._process.kill()
        self._process.wait(20)

    def limit_files(self, size: int) -> None:
        """Let no file of it grow beyond `size` bytes any more: a write fails in the system call, as on a full disk."""
        resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    def wait(self, seconds: float = 120) -> int:
        self.may_fail = True
        return self._process.wait(seconds)

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(20)

    def poll(self) -> int | None:
        return self._process.poll()


class World:
    """The processes of one test, and every batch that was ever handed over."""

    def __init__(self, root: Path, site: Path, model: Path, engine_port: int, steps: int) -> None:
        self.root, self.site, self.model, self.steps = root, site, model, steps
        self.folder = RunFolder(root / "run")
        self.config = root / "run.toml"
        self.children: list[Child] = []
        self.batches: dict[int, dict[str, bytes]] = defaultdict(dict)
        self._watching = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        text = CONFIG.format(directory=self.folder.root, model=model, port=engine_port, steps=steps)
        self.config.write_text(text, encoding="utf-8")

    def start(self, part: str) -> Child:
        """Start `prl orchestrator` or `prl trainer`; a second start is a resume."""
        child = Child(self.site, self.root / f"{part}.log", part, "-c", str(self.config))
        self.children.append(child)
        return child

    def trained(self, step: int) -> Callable[[], bool]:
        return lambda: (self.folder.trained / f"step_{step:06d}.json").is_file()

    def wait_for(self, condition: Callable[[], bool], seconds: float = 120.0, pause: float = 0.01) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"it did not come within {seconds} s\n{self.logs()}"
            assert all(child.poll() in (None, 0) for child in self.children if not child.may_fail), self.logs()
            time.sleep(pause)

    def logs(self) -> str:
        texts = {log.name: log.read_text(errors="replace")[-3000:] for log in self.root.glob("*.log")}
        return "\n".join(f"--- {name}\n{text}" for name, text in texts.items())

    def _watch(self) -> None:
        """Keep every content that a batch file ever had."""
        while not self._watching.wait(0.005):
            for step in self.folder.batch_steps():
                try:
                    data = self.folder.batch_path(step).read_bytes()
                except FileNotFoundError:
                    continue  # pruned just now; it was seen before
                self.batches[step][hashlib.sha256(data).hexdigest()] = data

    def __enter__(self) -> World:
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._watching.set()
        self._watcher.join(10)
        for child in self.children:
            child.end()

    # -- what must be true at the end, whatever happened

    def check_whole(self) -> None:
        """Nothing lost, nothing trained twice, no wrong token, no leftovers."""
        rows = read_metrics(self.folder.metrics)
        assert [row["step"] for row in rows] == list(range(self.steps)), self.logs()
        seen: list[str] = []
        for row in rows:
            step = int(row["step"])
            seen += self._check_step(step)
            assert (row["breaks"], row["samples_per_rollout"], row["rollouts/errors"]) == (0.0, 1.0, 0.0)
            assert row["rollouts"] == GROUPS * SIZE
            assert row.get("max_logprob_diff", 0.0) < EXACT, f"step {step} trained on tokens of other weights"
        assert sum(not row["step_skipped"] for row in rows) > self.steps // 2, "the rewards were all alike"
        assert sorted(set(seen)) == [f"group-{number:06d}" for number in range(GROUPS * self.steps)]
        assert len(seen) == GROUPS * SIZE * self.steps
        left = [str(path) for pattern in ("*/.*", "*/*/.*") for path in self.folder.root.glob(pattern)]
        assert left == [], "leftovers of killed processes"

    def _check_step(self, step: int) -> list[str]:
        """One batch was handed over and the same was trained; it holds what the rollouts of the step sampled."""
        contents = self.batches[step]
        assert len(contents) == 1, f"batch {step} had {len(contents)} contents"
        [(digest, data)] = contents.items()
        assert self.folder.trained_batch(step) == digest
        lines = self.folder.rollout_path(step).read_text(encoding="utf-8").splitlines()
        records = [json.loads(line) for line in lines]
        logged = {record["trajectory_id"]: record["samples"] for record in records}
        for sample in decode_batch(data).samples:
            [written] = logged[sample.trajectory_id]
            assert sample.prompt_ids == written["prompt_ids"]
            assert sample.completion_ids == written["completion_ids"]
            assert [round(value, 6) for value in sample.completion_logprobs] == written["logprobs"]
        for record in records:
            assert len(record["weight_versions"]) == TURNS
            assert set(record["weight_versions"]) == {step}, "a turn was sampled by other weights than the batch's"
        return [str(record["group_id"]) for record in records]


@contextmanager
def engine(site: Path, model: Path, port: int, log: Path) -> Iterator[Child]:
    """Serve a model on a port until the block ends."""
    child = Child(site, log, "serve", "--engine", "local", "--model", str(model), "--port", str(port), "--threads", "1")
    try:
        yield child
    finally:
        child.end()


def health(port: int) -> dict[str, Any] | None:
    """Return what the engine on a port says of itself, None where it does not answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as response:
            return dict(json.load(response))
    except OSError:
        return None
