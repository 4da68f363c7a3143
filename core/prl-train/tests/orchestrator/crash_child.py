"""A whole run in one process, which dies at the n-th time it touches a file: `python crash_child.py FOLDER`.

Prints as JSON what each run left behind that was killed once, at every such moment, and then resumed.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from scripted_worker import create

from prl_train.config import OrchestratorSection
from prl_train.distributed import World
from prl_train.launch import train_loop
from prl_train.launch.beside import train_beside
from prl_train.orchestrator import Orchestrator, weights
from prl_train.orchestrator.evaluation import EvaluationPlan
from prl_train.orchestrator.groups import GroupRunner
from prl_train.orchestrator.sinks import SinkSet
from prl_train.run import RunFolder
from prl_train.run.sinks import JsonlSink
from prl_train.storage import write_sealed

STEPS = 3
AT_ONCE = 6
WRITES = os.O_WRONLY | os.O_RDWR
KILLED = 137
TIMED = ("time", "throughput", "event_loop")
os.fsync = lambda descriptor: None  # a process that dies loses nothing that it wrote; a machine's disk may be slow
train_loop.POLL_SECONDS = weights.POLL_SECONDS = 0.002


class Trainer:
    """Its weights are the list of what it was trained on."""

    def __init__(self) -> None:
        self.world = World()
        self.config = SimpleNamespace(seq_len=64, checkpoint_every=2, keep_checkpoints=1)
        self.trained: list[str] = []

    def load(self) -> None:
        self.trained = []

    def step(self, micro_batches: list[Any]) -> dict[str, float]:
        seen = repr([(row.input_ids, row.advantages) for row in micro_batches]).encode()
        self.trained.append(hashlib.sha256(seen).hexdigest())
        return {"loss": float(len(self.trained)), "step": float(len(self.trained))}

    def publish_weights(self, directory: Path, version: int) -> Path:
        return self._write(directory / f"version_{version:06d}")

    def save_checkpoint(self, directory: Path, extra: dict[str, Any], *, then: Callable[[], None]) -> Path:
        self._write(directory)
        then()
        return directory

    def finish_checkpoint(self) -> None: ...

    def load_checkpoint(self, directory: Path) -> dict[str, Any]:
        self.trained = json.loads((directory / "state.json").read_text())
        return {}

    def _write(self, target: Path) -> Path:
        def fill(work: Path) -> None:
            (work / "state.json").write_text(json.dumps(self.trained))

        return write_sealed(target, "marker.json", {}, fill)


class Engine:
    async def load_weights(self, directory: str, version: int) -> None:
        assert (Path(directory) / "marker.json").is_file(), "weights were told that are not there"


def make(folder: RunFolder) -> tuple[Orchestrator, SinkSet]:
    worker = create({"turns": 2, "seed": 3})
    follower = weights.WeightFollower(Engine(), folder, wait_seconds=20)  # type: ignore[arg-type]
    section = OrchestratorSection(steps=STEPS, group_size=3, groups_per_step=2, max_async_level=0)

    def runner(evaluation: str | None, size: int) -> GroupRunner:
        return GroupRunner(
            worker,  # type: ignore[arg-type]
            worker.stages.stages[evaluation].schedule,
            group_size=size,
            max_concurrency=8,
            advantage_std=False,
            current_version=lambda: follower.version,
            evaluation=evaluation,
        )

    exam = EvaluationPlan(name="held-out", runner=runner("held-out", 1), examples=2, every=2)
    sinks = SinkSet({"jsonl": JsonlSink()})
    orchestrator = Orchestrator(
        section,
        runner=runner(None, 3),
        folder=folder,
        follower=follower,
        sinks=sinks,
        renderer=None,
        evaluations=[exam],
    )
    return orchestrator, sinks


async def play(root: Path) -> None:
    """Run to the end, or go on with what is there, as `prl rl --resume` does."""
    folder = RunFolder(root)
    with folder.shared():
        pass
    with ExitStack() as stack:
        for part in ("orchestrator", "trainer"):
            stack.enter_context(folder.owned(part))
        orchestrator, sinks = make(folder)
        sinks.open(root, {})
        loop = train_loop.TrainLoop(Trainer(), folder, steps=STEPS, max_async_level=0, wait_seconds=20)  # type: ignore[arg-type]
        await train_beside(folder, loop.run, orchestrator.run())
        sinks.close()


def count(root: Path, *, die_at: int = 0) -> list[int]:
    """Count the moments at which a file under `root` is about to change; die at one of them, as by `kill -9`."""
    seen, lock = [0], threading.RLock()

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if not event.startswith(("open", "os.")) or not arguments or not str(arguments[0]).startswith(str(root)):
            return
        if event == "open" and not int(arguments[2]) & WRITES:
            return
        if event not in ("open", "os.rename", "os.remove", "os.link", "os.mkdir", "os.rmdir", "os.truncate"):
            return
        with lock:
            seen[0] += 1
            if seen[0] == die_at:
                if str(arguments[0]).endswith("metrics.jsonl"):
                    tear(str(arguments[0]))
                os._exit(KILLED)

    sys.addaudithook(hook)
    return seen


def tear(path: str) -> None:
    """Leave the half of a row: what was appended when the power went."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "wb") as file:
        file.write(b'{"step": 9, "rewa')


def start(root: Path, die_at: int = 0) -> tuple[int, int]:
    """Play in a process of its own; return its id, and where it tells how many files it touched."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        signal.alarm(120)  # whatever hangs, the test does not
        try:
            seen = count(root, die_at=die_at)
            asyncio.run(play(root))
            os.write(writing, str(seen[0]).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    return pid, reading


def end(child: tuple[int, int]) -> tuple[int, int]:
    """Return how a process ended, and how many files it touched."""
    with os.fdopen(child[1]) as told:
        touched = told.read()
    return os.waitstatus_to_exitcode(os.waitpid(child[0], 0)[1]), int(touched or 0)


def left_behind(root: Path) -> dict[str, Any]:
    """Return what must be the same whoever was killed, and what must hold by itself."""
    folder = RunFolder(root)
    rows = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    steps = [row for row in rows if "loss" in row]
    newest = folder.latest_checkpoint()
    assert newest is not None
    logs = [folder.rollout_path(step).read_text() for step in folder.rollout_steps()]
    return {
        "steps": [int(row["step"]) for row in steps],
        "figures": [{k: v for k, v in row.items() if not k.startswith((*TIMED, "eval/"))} for row in steps],
        "rollouts": hashlib.sha256("".join(logs).encode()).hexdigest(),
        "trained": [newest[0], json.loads((newest[1] / "state.json").read_text())],
        "weights": folder.latest_weights()[0],  # type: ignore[index]
        "leftovers": sorted(str(path.relative_to(root)) for path in root.rglob(".*")),
        "evaluations": [
            folder.evaluated_steps("held-out"),
            sorted(int(row["eval/held-out/step"]) for row in rows if "eval/held-out/step" in row),
        ],
    }


def main(root: Path) -> None:
    ended, touched = end(start(root / "whole"))
    results: dict[str, Any] = {"whole": [ended, left_behind(root / "whole")], "touched": touched, "killed": []}
    for first in range(1, touched + 1, AT_ONCE):
        places = {moment: root / f"killed-{moment}" for moment in range(first, min(first + AT_ONCE, touched + 1))}
        killed = [start(place, moment) for moment, place in places.items()]
        ends = [end(one)[0] for one in killed]
        resumed = [start(place) for place in places.values()]
        again = [end(one)[0] for one in resumed]
        for (moment, place), died, went_on in zip(places.items(), ends, again, strict=True):
            results["killed"].append([moment, died, went_on, left_behind(place) if went_on == 0 else None])
    print(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
