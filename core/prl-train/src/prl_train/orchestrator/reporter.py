"""Join what the orchestrator and the trainer measured on a step, and pass it on once."""

from __future__ import annotations

from collections.abc import Mapping

from prl_train.run import RunFolder
from prl_train.run.metrics import is_evaluation, read_metrics

from .sinks import SinkSet


class StepReporter:
    """Reports steps in order, each when it was trained; a resumed run goes on after the last one reported.

    An evaluation's figures are reported at their step: in the step's own record where that is still to come, in one of
    their own otherwise.
    """

    def __init__(self, folder: RunFolder, sinks: SinkSet) -> None:
        self.folder = folder
        self.sinks = sinks
        self._next: int | None = None
        self._waiting: dict[int, dict[str, float]] = {}

    def report(self) -> int:
        """Report every trained step that was not reported; return the number of steps reported so far."""
        step = self._first_unreported() if self._next is None else self._next
        while True:
            trained = self.folder.read_trained(step)
            batch = self.folder.read_batch(step) if trained is not None else None
            if trained is None or batch is None:
                break
            self.sinks.metrics(step, batch.metrics | trained | self._waiting.pop(step, {}))
            step += 1
        self._next = step
        self._prune(step)
        return step

    def evaluated(self, step: int, values: Mapping[str, float]) -> None:
        """Take an evaluation of the weights of version `step`."""
        self.report()
        if self._next is not None and step >= self._next:
            self._waiting.setdefault(step, {}).update(values)
        else:
            self.sinks.metrics(step, values)

    def flush(self) -> None:
        """Report evaluations whose step has no record of its own: those after the last step."""
        self.report()
        for step in sorted(self._waiting):
            self.sinks.metrics(step, self._waiting.pop(step))

    def _prune(self, reported: int) -> None:
        """Remove batches that no resume can need: those before the newest checkpoint, its last one excepted."""
        checkpoint = self.folder.latest_checkpoint()
        if checkpoint is not None:
            self.folder.prune_batches(min(checkpoint[0], reported) - 1)

    def _first_unreported(self) -> int:
        steps = [int(row["step"]) for row in read_metrics(self.folder.metrics) if not is_evaluation(row)]
        return max(steps, default=-1) + 1
