"""The supervised loop: rows through a renderer, packed, trained, with checkpoints that resume exactly."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prl.types import ConfigError, MicroBatch
from prl_train.data import SftPacker, pack_supervised
from prl_train.data.sft_notes import told
from prl_train.errors import CheckpointError
from prl_train.run.files import sweep, write_text
from prl_train.run.folder import MARKER
from prl_train.run.metrics import append_metrics
from prl_train.run.owner import hold
from prl_train.storage import sweep_unfinished
from prl_train.trainer.checkpoint import checkpoint_path, latest_checkpoint, remove_old_checkpoints
from prl_train.trainer.trainer import Trainer

from .config import SftConfig
from .resume import compare_settings, settings_of
from .samples import SupervisedData, evaluation_rows, training_data

METRICS, CHECKPOINTS, WEIGHTS = "metrics.jsonl", "checkpoints", "weights"
LOG = logging.getLogger("prl.sft")
OnStep = Callable[[int, dict[str, float]], None]


@dataclass(frozen=True, slots=True)
class SftResult:
    """What a supervised run left: its last step, the metrics of each step it did itself, and where things are.

    `warnings` are sentences on what was trained and is odd, with counts over the whole run and what to do.
    """

    step: int
    metrics: list[dict[str, float]]
    checkpoint: Path
    weights: Path
    warnings: Sequence[str] = ()


def run_sft(
    config: SftConfig, *, resume: bool = True, on_step: OnStep | None = None, trainer: Trainer | None = None
) -> SftResult:
    """Train to the end and publish the weights.

    With `resume`, the newest whole checkpoint below `config.directory` is continued; the resumed run does exactly the
    steps an uninterrupted one would have done. Without it, a directory that holds checkpoints is an error. `trainer`
    replaces the one built from the settings (not yet loaded). In a world of several processes all call this: the main
    one reads the data and writes the files, and the trainers divide the rows of each step.
    """
    trainer = trainer or Trainer(config.trainer.model_copy(update={"model": config.model}))
    world = trainer.world
    data = training_data(config) if world.is_main else None
    try:
        held_out = world.from_main(evaluation_rows(config) if world.is_main else [])
        if world.is_main:
            _refuse_other_run(config.directory)
        with _owned(config.directory) if world.is_main else nullcontext():
            return _Run(config, trainer, data, held_out).run(resume, on_step or _nothing)
    finally:
        if data is not None:
            data.builder.close()


def _refuse_other_run(directory: Path) -> None:
    """Raise `ConfigError` for the folder of a run of `prl rl`, whose metrics and checkpoints have the same names."""
    if (directory / MARKER).exists():
        raise ConfigError(
            "the directory holds a run of `prl rl`",
            where=str(directory),
            next_step="give the supervised run another `directory`",
            keys=[("directory",)],
        )


@contextmanager
def _owned(directory: Path) -> Iterator[None]:
    """Be the one run of a directory; remove what a killed one left half-written. Raises `RunError` where one runs."""
    with hold(directory / "run.lock", "process"):
        sweep(directory, METRICS)
        for parent in (directory / CHECKPOINTS, directory / WEIGHTS):
            sweep_unfinished(parent)
        yield


class _Run:
    """One supervised run in one of its processes; `data` is None in those that read none."""

    def __init__(
        self, config: SftConfig, trainer: Trainer, data: SupervisedData | None, held_out: Sequence[MicroBatch]
    ) -> None:
        self.config = config
        self.trainer = trainer
        self.world = trainer.world
        self.data = data
        self.held_out = held_out
        self.checkpoints = config.directory / CHECKPOINTS
        self.log = config.directory / METRICS
        self._warned: set[str] = set()

    def run(self, resume: bool, on_step: OnStep) -> SftResult:
        self.trainer.load()
        self._resume(resume)
        done: list[dict[str, float]] = []
        for rows in self._steps():
            metrics = self._step(rows)
            done.append(metrics)
            if self.world.is_main:
                append_metrics(self.log, self.trainer.step_number, metrics)
                on_step(self.trainer.step_number, metrics)
            every = self.config.trainer.checkpoint_every
            if every and self.trainer.step_number % every == 0:
                self._save()
        last = self._save()
        self.trainer.finish_checkpoint()
        weights = self.trainer.publish_weights(self.config.directory / WEIGHTS, self.trainer.step_number)
        warnings = [] if self.data is None else told(self.data.packer.notes)
        return SftResult(self.trainer.step_number, done, last, weights, warnings)

    def _steps(self) -> Iterator[Sequence[MicroBatch]]:
        """Yield the rows of each step that is left."""
        while self.config.steps is None or self.trainer.step_number < self.config.steps:
            rows = self.world.from_main([] if self.data is None else self._next_rows(self.data.packer))
            if not rows:
                return
            yield rows

    def _next_rows(self, packer: SftPacker) -> list[MicroBatch]:
        rows: list[MicroBatch] = []
        while len(rows) < self.config.rows_per_step:
            try:
                rows.append(pack_supervised(packer.next_samples()))
            except StopIteration:
                break
        return rows

    def _step(self, rows: Sequence[MicroBatch]) -> dict[str, float]:
        metrics = self.trainer.sft_step(rows)
        if self.data is not None:
            metrics |= {"truncated": float(self.data.packer.truncated), "dropped": float(self.data.packer.dropped)}
            metrics |= {name: float(count) for name, count in self.data.packer.notes.items()}
            self._warn(self.data.packer.notes)
        if self.config.eval is not None and self.trainer.step_number % self.config.eval.every == 0:
            metrics["eval/loss"] = evaluate(self.trainer, self.held_out)
        return metrics

    def _warn(self, notes: Mapping[str, int]) -> None:
        """Tell what is odd when it is first met; how often it was is told at the end."""
        for line in told({name: count for name, count in notes.items() if name not in self._warned}):
            LOG.warning("so far, %s", line)
        self._warned.update(notes)

    def _resume(self, resume: bool) -> None:
        newest = self.world.from_main(latest_checkpoint(self.checkpoints))
        if newest is not None and not resume:
            raise ConfigError(
                "the run directory already holds checkpoints",
                where=str(self.checkpoints),
                next_step="resume the run (`prl sft --resume`), or give another `directory`",
            )
        if newest is not None:
            extra = self.trainer.load_checkpoint(newest)
            if self.data is not None:
                _go_on(self.data, extra, self.config)
        if self.world.is_main:
            _forget_metrics_after(self.log, self.trainer.step_number)

    def _save(self) -> Path:
        state: dict[str, Any] = {} if self.data is None else _state_of(self.config, self.data)
        target = checkpoint_path(self.checkpoints, self.trainer.step_number)

        def prune() -> None:
            remove_old_checkpoints(self.checkpoints, self.config.trainer.keep_checkpoints)

        return self.trainer.save_checkpoint(target, self.world.from_main(state), then=prune)


def _state_of(config: SftConfig, data: SupervisedData) -> dict[str, Any]:
    return {"packer": data.packer.state_dict(), "data": data.fingerprint, "settings": settings_of(config)}


def _go_on(data: SupervisedData, extra: dict[str, Any], config: SftConfig) -> None:
    if extra.get("data") != data.fingerprint:
        raise CheckpointError(
            "the data changed since the checkpoint was made",
            where=", ".join(source.path for source in config.data.all_sources()),
            next_step="resume with the same data, or start a new run in another `directory`",
        )
    if "settings" in extra:  # those of older versions are not there to be compared
        compare_settings(extra["settings"], config)
    data.packer.load_state_dict(extra["packer"])


def evaluate(trainer: Trainer, rows: Sequence[MicroBatch]) -> float:
    """Return the mean cross-entropy over all targets of packed rows, in nats; the processes divide the rows."""
    world = trainer.world
    rows = trainer.rows_of(rows)
    mine = rows[world.data_rank :: world.data_size]
    total = 0.0
    for turn in range(math.ceil(len(rows) / world.data_size)):
        # A forward pass of a divided model takes all processes: those without a row left score one that is not counted.
        scores = trainer.score(mine[turn] if turn < len(mine) else rows[0])
        total -= sum(scores) if turn < len(mine) else 0.0
    [summed] = world.add_up([total])
    return summed / sum(sum(row.loss_mask) for row in rows)


def _nothing(step: int, metrics: dict[str, float]) -> None:
    """Do nothing after a step."""


def _forget_metrics_after(path: Path, step: int) -> None:
    """Drop lines of steps that the resumed run does again, so that each step stands there once."""
    if not path.is_file():
        return
    kept = [line for line in path.read_text(encoding="utf-8").splitlines() if _step_of(line) <= step]
    write_text(path, "".join(line + "\n" for line in kept))


def _step_of(line: str) -> float:
    """Return the step of a metrics line; a line cut off by a crash belongs to no step."""
    try:
        values: dict[str, Any] = json.loads(line)
    except json.JSONDecodeError:
        return float("inf")
    return float(values.get("step", float("inf")))
