"""Join what the orchestrator and the trainer measured on a step, and pass it on once."""

from __future__ import annotations

from prl_train.run import RunFolder
from prl_train.run.metrics import read_metrics

from .sinks import SinkSet


class StepReporter:
    """Reports steps in order, each when it was trained; a resumed run goes on after the last one reported."""

    def __init__(self, folder: RunFolder, sinks: SinkSet) -> None:
        self.folder = folder
        self.sinks = sinks
        self._next: int | None = None

    def report(self) -> int:
        """Report every trained step that was not reported; return the number of steps reported so far."""
        step = self._first_unreported() if self._next is None else self._next
        while True:
            trained = self.folder.read_trained(step)
            batch = self.folder.read_batch(step) if trained is not None else None
            if trained is None or batch is None:
                break
            self.sinks.metrics(step, batch.metrics | trained)
            step += 1
        self._next = step
        self._prune(step)
        return step

    def _prune(self, reported: int) -> None:
        """Remove batches that no resume can need: those before the newest checkpoint, its last one excepted."""
        checkpoint = self.folder.latest_checkpoint()
        if checkpoint is not None:
            self.folder.prune_batches(min(checkpoint[0], reported) - 1)

    def _first_unreported(self) -> int:
        rows = read_metrics(self.folder.metrics)
        return int(rows[-1]["step"]) + 1 if rows else 0
