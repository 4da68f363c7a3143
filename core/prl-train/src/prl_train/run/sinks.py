"""The sinks that come with prl-train: `jsonl` (always on) and `console`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from prl.types import Rollout

from .metrics import EVALUATION, append_metrics, is_evaluation, read_metrics


class NoOptions(BaseModel):
    """A sink without options."""

    model_config = ConfigDict(extra="forbid")


class JsonlSink:
    """Appends one row a step to metrics.jsonl; a step that is there already is not written twice."""

    is_run_record = True

    def __init__(self) -> None:
        self._path = Path()
        self._last = -1

    def open(self, run_dir: Path, config: Mapping[str, Any]) -> None:
        """Begin or continue the file of the run."""
        self._path = run_dir / "metrics.jsonl"
        steps = [int(row["step"]) for row in read_metrics(self._path) if not is_evaluation(row)]
        self._last = max(steps, default=-1)

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Append the row of `step`; an evaluation's own row comes when it is done."""
        if is_evaluation(values):
            append_metrics(self._path, step, values)
        elif step > self._last:
            append_metrics(self._path, step, values)
            self._last = step

    def rollouts(self, step: int, rollouts: Sequence[Rollout]) -> None:
        """Leave rollouts to the run folder, which logs them with their spans."""

    def close(self) -> None:
        """Hold nothing open."""


def create_jsonl(options: NoOptions) -> JsonlSink:
    """Create the `jsonl` sink."""
    return JsonlSink()


class ConsoleSink:
    """A progress bar on a terminal; a plain line every few steps elsewhere."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(file=sys.stderr)
        self._steps = 0
        self._every = 1
        self._progress: Progress | None = None
        self._task: Any = None

    def open(self, run_dir: Path, config: Mapping[str, Any]) -> None:
        """Begin the display."""
        self._steps = int(config.get("orchestrator", {}).get("steps", 0))
        self._every = max(1, self._steps // 20)
        if self.console.is_terminal:
            columns = (TextColumn("training"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
            self._progress = Progress(*columns, TimeElapsedColumn(), console=self.console)
            self._task = self._progress.add_task("waiting for the first batch", total=self._steps or None)
            self._progress.start()

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Show one step; evaluations have a line of their own."""
        for line in describe_evaluations(values):
            self.console.print(f"step {step}: {line}", highlight=False, soft_wrap=True)
        if is_evaluation(values):
            return
        text = describe(values)
        if self._progress is not None:
            self._progress.update(self._task, completed=step + 1, description=text)
        elif step % self._every == 0 or step == self._steps - 1:
            self.console.print(f"step {step + 1}/{self._steps}  {text}", highlight=False, soft_wrap=True)

    def rollouts(self, step: int, rollouts: Sequence[Rollout]) -> None:
        """Show no rollouts."""

    def close(self) -> None:
        """End the display."""
        if self._progress is not None:
            self._progress.stop()


def describe(values: Mapping[str, float]) -> str:
    """Return one step in one line."""
    shown = (("reward", "reward", ".3f"), ("loss", "loss", ".4f"), ("mismatch_kl", "mismatch KL", ".1e"))
    parts = [f"{label} {values[name]:{form}}" for name, label, form in shown if name in values]
    return "  ".join([*parts, f"breaks {values.get('breaks', 0):.0f}"])


def describe_evaluations(values: Mapping[str, float]) -> list[str]:
    """Return one line for each evaluation in a record: its name, and its average and pass rate."""
    lines: dict[str, list[str]] = {}
    for key, value in values.items():
        name, _, figure = key.removeprefix(EVALUATION).partition("/")
        if key.startswith(EVALUATION) and "@" in figure:
            lines.setdefault(name, []).append(f"{figure} {value:.3f}")
    return [f"evaluation {name}: {'  '.join(figures)}" for name, figures in lines.items()]


def create_console(options: NoOptions) -> ConsoleSink:
    """Create the `console` sink."""
    return ConsoleSink()
