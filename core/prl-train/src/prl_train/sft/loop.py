"""The supervised loop: rows through a renderer, packed, trained, with checkpoints that resume exactly."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prl.types import ConfigError, MicroBatch
from prl_train.data import SftPacker, pack_supervised
from prl_train.errors import CheckpointError
from prl_train.trainer.checkpoint import checkpoint_path, latest_checkpoint, remove_old_checkpoints
from prl_train.trainer.trainer import Trainer

from .config import SftConfig
from .samples import SupervisedData, evaluation_rows, training_data

OnStep = Callable[[int, dict[str, float]], None]


@dataclass(frozen=True, slots=True)
class SftResult:
    """What a supervised run left: its last step, the metrics of each step it did itself, and where things are."""

    step: int
    metrics: list[dict[str, float]]
    checkpoint: Path
    weights: Path


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
        return _Run(config, trainer, data, held_out).run(resume, on_step or _nothing)
    finally:
        if data is not None:
            data.builder.close()


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
        self.checkpoints = config.directory / "checkpoints"
        self.log = config.directory / "metrics.jsonl"

    def run(self, resume: bool, on_step: OnStep) -> SftResult:
        self.trainer.load()
        self._resume(resume)
        done: list[dict[str, float]] = []
        for rows in self._steps():
            metrics = self._step(rows)
            done.append(metrics)
            if self.world.is_main:
                _log(self.log, metrics)
                on_step(self.trainer.step_number, metrics)
            every = self.config.trainer.checkpoint_every
            if every and self.trainer.step_number % every == 0:
                self._save()
        last = self._save()
        self.trainer.finish_checkpoint()
        weights = self.trainer.publish_weights(self.config.directory / "weights", self.trainer.step_number)
        return SftResult(self.trainer.step_number, done, last, weights)

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
        if self.config.eval is not None and self.trainer.step_number % self.config.eval.every == 0:
            metrics["eval/loss"] = evaluate(self.trainer, self.held_out)
        return metrics

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
        state = {} if self.data is None else {"packer": self.data.packer.state_dict(), "data": self.data.fingerprint}
        target = checkpoint_path(self.checkpoints, self.trainer.step_number)

        def prune() -> None:
            remove_old_checkpoints(self.checkpoints, self.config.trainer.keep_checkpoints)

        return self.trainer.save_checkpoint(target, self.world.from_main(state), then=prune)


def _go_on(data: SupervisedData, extra: dict[str, Any], config: SftConfig) -> None:
    if extra.get("data") != data.fingerprint:
        raise CheckpointError(
            "the data changed since the checkpoint was made",
            where=", ".join(source.path for source in config.data.all_sources()),
            next_step="resume with the same data, or start a new run in another `directory`",
        )
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


def _log(path: Path, metrics: dict[str, float]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(metrics) + "\n")


def _forget_metrics_after(path: Path, step: int) -> None:
    """Drop lines of steps that the resumed run does again, so that each step stands there once."""
    if not path.is_file():
        return
    kept = [line for line in path.read_text(encoding="utf-8").splitlines() if _step_of(line) <= step]
    work = path.with_name(f".{path.name}.new")
    work.write_text("".join(line + "\n" for line in kept), encoding="utf-8")
    os.replace(work, path)


def _step_of(line: str) -> float:
    """Return the step of a metrics line; a line cut off by a crash belongs to no step."""
    try:
        values: dict[str, Any] = json.loads(line)
    except json.JSONDecodeError:
        return float("inf")
    return float(values.get("step", float("inf")))
