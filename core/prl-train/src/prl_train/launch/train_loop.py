"""The trainer's side of a run: wait for a batch, train, publish weights, save checkpoints."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from prl_train.data import fit_samples, pack
from prl_train.run import PeerError, RunFolder, StepBatch
from prl_train.trainer import Trainer
from prl_train.trainer.checkpoint import remove_old_checkpoints
from prl_train.trainer.weights import remove_old_weights
from prl_train.transfer.broadcast import Broadcast

POLL_SECONDS = 0.02


class WeightsWanted:
    """What is to be done instead of a batch: an engine that began anew needs the current weights in a directory."""


class TrainLoop:
    """Trains the batches of a run folder in order.

    In a world of several processes each runs a loop of its own, in step with the others: the main one looks at the run
    folder and writes to it, and tells the others what it found.
    """

    def __init__(
        self,
        trainer: Trainer,
        folder: RunFolder,
        *,
        steps: int,
        max_async_level: int,
        wait_seconds: float,
        warm_up: Callable[[Trainer], None] | None = None,
        broadcast: Broadcast | None = None,
    ) -> None:
        self.trainer = trainer
        self.world = trainer.world
        self.folder = folder
        self.steps = steps
        self.checkpoint_every = trainer.config.checkpoint_every
        self.wait_seconds = wait_seconds
        self.warm_up = warm_up
        self.broadcast = broadcast
        # The engine may be `max_async_level` versions behind, and loading one while the next is published.
        self._keep = max_async_level + 2
        self._published = -1

    def run(self, stop: threading.Event) -> int:
        """Train until the last step, the orchestrator's end or `stop`; return the number of steps trained."""
        step = self._begin()
        self._publish(step, stop)
        while step < self.steps:
            batch = self.world.from_main(self._wait(step, stop) if self.world.is_main else None)
            if batch is None:
                break
            if isinstance(batch, WeightsWanted):
                self._write_weights(step)
                continue
            started = time.monotonic()
            metrics = self._train(batch)
            if self.world.is_main:
                self.folder.write_trained(step, metrics | {"time/train_s": time.monotonic() - started})
            step += 1
            self._publish(step, stop)
            if self.checkpoint_every and step % self.checkpoint_every == 0 and step < self.steps:
                self._save(step)
        self._write_weights(step)
        self._save(step)
        self.trainer.finish_checkpoint()
        if self.broadcast is not None:
            self.broadcast.close()
        return step

    def _begin(self) -> int:
        """Load the newest checkpoint, or the model and its warm-up; return the number of batches that went into it."""
        published, newest = self.world.from_main((self.folder.latest_weights(), self.folder.latest_checkpoint()))
        self._published = -1 if published is None else published[0]
        self.trainer.load()
        if newest is not None:
            step, directory = newest
            self.trainer.load_checkpoint(directory)
            return step
        if self.warm_up is not None:
            self.warm_up(self.trainer)
        return 0

    def _wait(self, step: int, stop: threading.Event) -> StepBatch | WeightsWanted | None:
        since = time.monotonic()
        while not stop.is_set():
            batch = self.folder.read_batch(step)
            if batch is not None:
                return batch
            if self._is_wanted(step):
                return WeightsWanted()
            self.folder.status.raise_if_failed("orchestrator")
            status = self.folder.status.get("orchestrator")
            if status is not None and status.state == "done":
                return None
            if time.monotonic() - since > self.wait_seconds:
                raise PeerError(
                    f"batch {step} did not come for {self.wait_seconds:.0f} s",
                    where=str(self.folder.batch_path(step)),
                    next_step="see whether `prl orchestrator` runs on this run.directory, or raise run.wait_seconds",
                )
            stop.wait(POLL_SECONDS)
        return None

    def _train(self, batch: StepBatch) -> dict[str, float]:
        """Train one batch. One without a learning signal changes nothing and is counted as skipped."""
        seq_len = self.trainer.config.seq_len
        fitted = fit_samples(batch.samples, seq_len)
        counts = {"samples/truncated": float(fitted.truncated), "samples/dropped": float(fitted.dropped)}
        if not fitted.samples:
            return counts | {"step_skipped": 1.0}
        metrics = self.trainer.step(pack(fitted.samples, seq_len))
        # The trainer counts optimizer steps; a run counts batches, skipped ones included.
        metrics["optimizer_steps"] = metrics.pop("step")
        return metrics | counts | {"step_skipped": 0.0}

    def _publish(self, version: int, stop: threading.Event) -> None:
        """Publish new weights. A version that an interrupted run already published is being trained again: it stays."""
        if version <= self._published:
            return
        broadcast = None if self.broadcast is None or self._needs_directory(version) else self.broadcast
        if broadcast is None or not broadcast.send(version, lambda: self._nobody_waits(stop)):
            self._write_weights(version)

    def _needs_directory(self, version: int) -> bool:
        """Whether a version is written even where engines can receive it: for the start, the end, and later engines."""
        is_checkpoint = bool(self.checkpoint_every) and version % self.checkpoint_every == 0
        needed = self._published < 0 or version == self.steps or is_checkpoint
        return self.world.from_main(needed or self._is_wanted(version))

    def _is_wanted(self, version: int) -> bool:
        """Whether an engine waits for a directory that the weights of `version` would be."""
        wanted = None if self.broadcast is None else self.broadcast.wanted()
        return wanted is not None and self._published < wanted <= version

    def _nobody_waits(self, stop: threading.Event) -> bool:
        status = self.folder.status.get("orchestrator")
        return stop.is_set() or (status is not None and status.state == "done")

    def _write_weights(self, version: int) -> None:
        """Write a directory of the weights and point to it, where that was not done yet."""
        if version <= self._published:
            return
        directory = self.trainer.publish_weights(self.folder.weights, version)
        if self.world.is_main:
            self.folder.write_weights_pointer(version, directory)
            remove_old_weights(self.folder.weights, self._keep)
        self._published = version

    def _save(self, step: int) -> None:
        directory = self.folder.checkpoints / f"step_{step:06d}"

        def point() -> None:
            self.folder.write_checkpoint_pointer(step, directory)
            remove_old_checkpoints(self.folder.checkpoints, self.trainer.config.keep_checkpoints, directory)

        self.trainer.save_checkpoint(directory, {"step": step}, then=point)
