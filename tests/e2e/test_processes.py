"""Engine, orchestrator and trainer as three processes over HTTP and a shared folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fixtures.crash_points import KILLED
from fixtures.forks import Forked, Forks
from fixtures.ports import free_port

from prl_train.run import RunFolder
from prl_train.run.metrics import read_metrics

pytestmark = pytest.mark.heavy
SECONDS = 240.0


@contextmanager
def process(forks: Forks, log: Path, *words: str) -> Iterator[Forked]:
    """Run a `prl` command, its output in `log`; end it where the test leaves it running."""
    child = forks.start("prl.cli.main:main", words, log=log)
    try:
        yield child
    finally:
        child.end()


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come within {SECONDS} s"
        time.sleep(0.05)


def test_three_processes_train_together(forks: Forks, tmp_path: Path, quickstart: Path, short: tuple[str, ...]) -> None:
    directory, port = tmp_path / "run", free_port()
    common = ("-c", str(quickstart), *short, f"run.directory={directory}", f"engine.url=http://127.0.0.1:{port}")
    logs = {name: tmp_path / f"{name}.log" for name in ("trainer", "orchestrator", "engine")}
    model = directory / "model"
    with (
        process(forks, logs["trainer"], "trainer", *common) as trainer,
        process(forks, logs["orchestrator"], "orchestrator", *common) as orchestrator,
    ):
        wait_for((model / "config.json").is_file, "the model from scratch")
        serve = ("serve", "--engine", "local", "--model", str(model), "--port", str(port), "--threads", "1")
        with process(forks, logs["engine"], *serve):
            codes = [child.wait(SECONDS) for child in (orchestrator, trainer)]
    text = "\n".join(f"--- {name}\n{log.read_text()}" for name, log in logs.items())
    assert codes == [0, 0], text
    rows = read_metrics(RunFolder(directory).metrics)
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    assert all(row["samples_per_rollout"] == 1.0 and row["breaks"] == 0.0 for row in rows)
    assert max(row.get("max_logprob_diff", 0.0) for row in rows) < 1e-3
    assert RunFolder(directory).report.is_file()


def test_a_failed_trainer_ends_the_orchestrator(
    forks: Forks, tmp_path: Path, quickstart: Path, short: tuple[str, ...]
) -> None:
    directory, port = tmp_path / "run", free_port()
    common = ("-c", str(quickstart), *short, f"run.directory={directory}", f"engine.url=http://127.0.0.1:{port}")
    log = tmp_path / "orchestrator.log"
    with process(forks, log, "orchestrator", *common) as orchestrator:
        wait_for((directory / "model" / "config.json").is_file, "the model from scratch")
        serve = ("serve", "--engine", "local", "--model", str(directory / "model"), "--port", str(port))
        with process(forks, tmp_path / "engine.log", *serve):
            RunFolder(directory).status.set("trainer", "failed", "out of memory")
            assert orchestrator.wait(SECONDS) == 1
    assert "the trainer failed: out of memory" in log.read_text()


def test_a_killed_run_goes_on_as_if_nothing_had_happened(
    forks: Forks, tmp_path: Path, quickstart: Path, short: tuple[str, ...]
) -> None:
    # One rollout at a time, so that float32 sums do not depend on the timing of the engine's batches.
    common = ("-c", str(quickstart), *short, "orchestrator.max_concurrency=1", "orchestrator.steps=6")
    whole, killed = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "killed")
    with process(forks, tmp_path / "whole.log", "rl", *common, f"run.directory={whole.root}") as child:
        assert child.wait(SECONDS) == 0
    words = ["rl", *common, f"run.directory={killed.root}"]
    at = ("os.rename", "trained/step_000002.json")
    arguments = (str(killed.root), at, str(tmp_path / "seen.json"), words)
    assert forks.start("fixtures.crash_points:run", *arguments, log=tmp_path / "killed.log").wait(SECONDS) == KILLED
    assert killed.read_trained(2) is None
    with process(forks, tmp_path / "again.log", *words, "--resume") as child:
        assert child.wait(SECONDS) == 0, (tmp_path / "again.log").read_text()
    rows = [
        [(row["step"], row["reward"], row.get("loss")) for row in read_metrics(run.metrics)] for run in (whole, killed)
    ]
    assert rows[0] == rows[1]
    assert [row[0] for row in rows[1]] == [0, 1, 2, 3, 4, 5]
    for step in range(6):
        assert whole.rollout_path(step).read_bytes() == killed.rollout_path(step).read_bytes()
