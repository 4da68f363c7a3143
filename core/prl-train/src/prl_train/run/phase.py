"""Follow a phase before the run proper: a metrics file, and a progress display on the terminal."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from .metrics import append_metrics


class PhaseLog:
    """Writes each step of a phase to a metrics file of its own, and shows where it stands."""

    def __init__(self, title: str, steps: int, path: Path, console: Console | None = None) -> None:
        self.title = title
        self.steps = steps
        self.path = path
        self.console = console or Console(file=sys.stderr)
        self._progress: Progress | None = None
        self._task: Any = None

    def __enter__(self) -> PhaseLog:
        """Begin the phase with an empty file: one that was cut short is done again from its start."""
        self.path.unlink(missing_ok=True)
        if self.console.is_terminal:
            columns = (TextColumn(self.title), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
            self._progress = Progress(*columns, TimeElapsedColumn(), console=self.console)
            self._task = self._progress.add_task("", total=self.steps)
            self._progress.start()
        return self

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Note one step (from 0)."""
        append_metrics(self.path, step, metrics)
        text = f"loss {metrics['loss']:.4f}"
        if self._progress is not None:
            self._progress.update(self._task, completed=step + 1, description=text)
        elif step % max(1, self.steps // 5) == 0 or step == self.steps - 1:
            self.console.print(f"{self.title} {step + 1}/{self.steps}  {text}", highlight=False)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the display."""
        if self._progress is not None:
            self._progress.stop()
