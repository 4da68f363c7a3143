"""Sinks: none of them may stop a run."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from prl.contracts import Sink
from prl.types import Rollout
from prl_train.orchestrator.sink_thread import ROLLOUTS
from prl_train.orchestrator.sinks import SinkSet
from prl_train.run import StorageError
from prl_train.run.metrics import read_metrics
from prl_train.run.sinks import ConsoleSink, JsonlSink


class Broken:
    """Fails on the first metrics."""

    calls = 0

    def open(self, run_dir: Path, config: Mapping[str, Any]) -> None:
        pass

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        self.calls += 1
        raise ConnectionError("no route to the dashboard")

    def rollouts(self, step: int, rollouts: Sequence[Rollout]) -> None:
        self.calls += 1

    def close(self) -> None:
        self.calls += 1


def test_a_failing_sink_is_named_switched_off_and_spares_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = Broken()
    sinks = SinkSet({"dashboard": broken, "jsonl": JsonlSink()})
    sinks.open(tmp_path, {})
    for step in range(3):
        sinks.metrics(step, {"reward": 0.5})
    sinks.close()
    assert broken.calls == 1
    assert sinks.failures == {"dashboard": "ConnectionError: no route to the dashboard"}
    assert "sink 'dashboard' failed and is switched off" in capsys.readouterr().err
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 3


class Hanging(Broken):
    """Takes the first metrics and does not come back until the test lets it."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.steps: list[int] = []

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        self.gate.wait(30)
        self.steps.append(step)


def test_a_sink_that_hangs_holds_up_neither_the_run_nor_the_other_sinks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What waits for it is bounded, it is told once, and the run ends without it."""
    hanging = Hanging()
    sinks = SinkSet({"dashboard": hanging, "jsonl": JsonlSink()}, patience=0.05)
    began = time.monotonic()
    sinks.open(tmp_path, {})
    for step in range(ROLLOUTS + 8):
        sinks.metrics(step, {"reward": 0.5})
        sinks.rollouts(step, [])
    sinks.close()
    assert time.monotonic() - began < 20.0
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == ROLLOUTS + 8
    assert sinks.left_out == {"dashboard": 8}
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 2, "once when it begins, once at the end"
    assert "sink 'dashboard' does not keep up (4 records of rollouts wait); what it misses is left out" in told[0]
    assert "sink 'dashboard' does not end and is left behind" in told[1]
    hanging.gate.set()


def test_a_slow_sink_gets_what_waits_in_order_before_the_run_ends(tmp_path: Path) -> None:
    slow = Hanging()
    sinks = SinkSet({"dashboard": slow}, patience=20.0)
    sinks.open(tmp_path, {})
    for step in range(50):
        sinks.metrics(step, {"reward": 0.5})
    slow.gate.set()
    sinks.close()
    assert (slow.steps, slow.calls, sinks.left_out) == (list(range(50)), 1, {})


def test_a_sink_that_hangs_when_it_is_opened_does_not_keep_the_run_from_beginning(tmp_path: Path) -> None:
    class Unreachable(Hanging):
        def open(self, run_dir: Path, config: Mapping[str, Any]) -> None:
            self.gate.wait(30)

    sink = Unreachable()
    sinks = SinkSet({"dashboard": sink}, patience=0.0)
    began = time.monotonic()
    sinks.open(tmp_path, {})
    sinks.close()
    assert time.monotonic() - began < 20.0
    sink.gate.set()


def test_what_the_runs_own_record_raises_ends_the_run(tmp_path: Path) -> None:
    """A row of metrics.jsonl that is not written would be lost without a word."""
    sinks = SinkSet({"jsonl": JsonlSink()})
    sinks.open(tmp_path, {})
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(StorageError, match=r"metrics\.jsonl cannot be written"):
        sinks.metrics(0, {"reward": 0.5})


def test_the_metrics_file_takes_each_step_once_also_over_a_resume(tmp_path: Path) -> None:
    for steps in (range(3), range(1, 5)):
        sink = JsonlSink()
        assert isinstance(sink, Sink)
        sink.open(tmp_path, {})
        for step in steps:
            sink.metrics(step, {"reward": step / 10})
    assert [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [0, 1, 2, 3, 4]


def test_the_console_prints_some_lines_without_a_terminal_and_always_the_last(tmp_path: Path) -> None:
    out = io.StringIO()
    sink = ConsoleSink(Console(file=out, width=120))
    sink.open(tmp_path, {"orchestrator": {"steps": 40}})
    for step in range(40):
        sink.metrics(step, {"reward": 0.5, "loss": -0.25, "mismatch_kl": 1e-9, "breaks": 0.0})
    sink.close()
    lines = out.getvalue().splitlines()
    assert lines[0] == "step 1/40  reward 0.500  loss -0.2500  mismatch KL 1.0e-09  breaks 0"
    assert lines[-1].startswith("step 40/40")
    assert 20 <= len(lines) <= 22
