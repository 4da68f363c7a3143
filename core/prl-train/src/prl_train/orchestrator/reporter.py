"""Join what the orchestrator and the trainer measured on a step, and pass it on once."""

from __future__ import annotations

from collections.abc import Mapping

from prl_train.run import RunFolder
from prl_train.run.metrics import EVALUATION, is_evaluation, read_metrics

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

    def begin(self) -> None:
        """Find out what was reported already, and take the evaluations that were done but not reported.

        A run may be killed between the two; call this before any evaluation begins.
        """
        rows = read_metrics(self.folder.metrics)
        steps = [int(row["step"]) for row in rows if not is_evaluation(row)]
        # What was pruned cannot be reported: where rows were lost, go on with the first batch that is there.
        self._next = max(max(steps, default=-1) + 1, min(self.folder.batch_steps(), default=0))
        told = {(name, value) for row in rows for name, value in row.items() if name.startswith(EVALUATION)}
        for name, version, values in self.folder.read_evaluations():
            if (f"{EVALUATION}{name}/step", version) not in told:
                self.evaluated(version, values)

    def report(self) -> int:
        """Report every trained step that was not reported; return the number of steps reported so far."""
        if self._next is None:
            self.begin()
        step = self._next or 0
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
        if step >= self.report():
            self._waiting.setdefault(step, {}).update(values)
        else:
            self.sinks.metrics(step, values)

    def flush(self) -> None:
        """Report evaluations whose step has no record of its own: those after the last step."""
        self.report()
        for step in sorted(self._waiting):
            self.sinks.metrics(step, self._waiting.pop(step))

    def _prune(self, reported: int) -> None:
        """Remove what no resume can need: batches, and what was measured on them, before the newest checkpoint.

        The last one before it stays: it says where the orchestrator stands.
        """
        checkpoint = self.folder.latest_checkpoint()
        if checkpoint is not None:
            needed = min(checkpoint[0], reported) - 1
            self.folder.prune_batches(needed)
            self.folder.prune_trained(needed)
