"""Sinks: none of them may stop a run."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from prl.contracts import Sink
from prl.types import Rollout
from prl_train.orchestrator.sinks import SinkSet
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
