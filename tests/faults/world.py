"""A small run of three processes that tests kill, stop and start again, and what it must prove at the end."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fixtures.forks import Forks

from prl_train.run import RunFolder, decode_batch
from prl_train.run.metrics import read_metrics

GROUPS, SIZE, TURNS = 2, 4, 3
KEPT = "kept"
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
wait_seconds = 240.0
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


def run(kept: str, words: list[str]) -> int:
    """Be a process of a run, which keeps a link to what it removes or replaces of batches and of what was trained."""
    numbers = itertools.count()

    def keep(event: str, args: tuple[Any, ...]) -> None:
        place = {"os.rename": 1, "os.remove": 0}.get(event)
        path = "" if place is None else os.fsdecode(args[place])
        name = os.path.basename(path)
        if name.startswith(("batch_", "step_")) and os.path.isfile(path):
            os.link(path, os.path.join(kept, f"{name}.{os.getpid()}.{next(numbers)}"))

    sys.addaudithook(keep)
    from prl.cli.main import main

    return main(words)


class Child:
    """One process of a run, by its own id; its output is kept in a file."""

    def __init__(self, forks: Forks, site: Path, log: Path, *words: str, **environment: str) -> None:
        self.log = log
        self.may_fail = False
        env = {"PYTHONPATH": str(site), **environment}
        self._process = forks.start("faults.world:run", str(log.parent / KEPT), words, log=log, env=env)

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """End it as a machine that dies does: nothing of its own runs any more."""
        self.may_fail = True
        self._process.end()

    def limit_files(self, size: int) -> None:
        """Let no file of it grow beyond `size` bytes any more: a write fails in the system call, as on a full disk."""
        resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    def wait(self, seconds: float = 240) -> int:
        self.may_fail = True
        return self._process.wait(seconds)

    def end(self) -> None:
        self._process.end()

    def poll(self) -> int | None:
        return self._process.poll()


class World:
    """The processes of one test, and every batch that was ever handed over and trained."""

    def __init__(self, forks: Forks, root: Path, site: Path, model: Path, engine_port: int, steps: int) -> None:
        self.forks, self.root, self.site, self.model, self.steps = forks, root, site, model, steps
        self.folder = RunFolder(root / "run")
        self.config = root / "run.toml"
        self.children: list[Child] = []
        self.kept = root / KEPT
        self.kept.mkdir()
        text = CONFIG.format(directory=self.folder.root, model=model, port=engine_port, steps=steps)
        self.config.write_text(text, encoding="utf-8")

    def start(self, part: str, **environment: str) -> Child:
        """Start `prl orchestrator` or `prl trainer`; a second start is a resume."""
        child = Child(self.forks, self.site, self.root / f"{part}.log", part, "-c", str(self.config), **environment)
        self.children.append(child)
        return child

    def trained(self, step: int) -> Callable[[], bool]:
        return lambda: bool(self.contents(self.folder.trained, f"step_{step:06d}.json"))

    def contents(self, directory: Path, name: str) -> set[bytes]:
        """Return every content that a file ever had in a directory of the run."""
        return {path.read_bytes() for path in (*self.kept.glob(f"{name}.*"), *directory.glob(name))}

    def wait_for(self, condition: Callable[[], bool], seconds: float = 240.0, pause: float = 0.01) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"it did not come within {seconds} s\n{self.logs()}"
            assert all(child.poll() in (None, 0) for child in self.children if not child.may_fail), self.logs()
            time.sleep(pause)

    def logs(self) -> str:
        texts = {log.name: log.read_text(errors="replace")[-3000:] for log in self.root.glob("*.log")}
        return "\n".join(f"--- {name}\n{text}" for name, text in texts.items())

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
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
        handed = self.contents(self.folder.batches, self.folder.batch_path(step).name)
        assert len(handed) == 1, f"batch {step} had {len(handed)} contents"
        [data] = handed
        trained = self.contents(self.folder.trained, f"step_{step:06d}.json")
        assert {json.loads(text)["batch_sha256"] for text in trained} == {hashlib.sha256(data).hexdigest()}
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
def engine(forks: Forks, site: Path, model: Path, port: int, log: Path) -> Iterator[Child]:
    """Serve a model on a port until the block ends."""
    words = ("serve", "--engine", "local", "--model", str(model), "--port", str(port), "--threads", "1")
    child = Child(forks, site, log, *words)
    try:
        yield child
    finally:
        child.end()
