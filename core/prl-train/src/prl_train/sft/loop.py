"""The supervised loop: rows through a renderer, packed, trained, with checkpoints that resume exactly."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prl.contracts import Renderer
from prl.types import ConfigError, MicroBatch, RenderError
from prl_train.data import IndexedSource, SftPacker, SftRow, SftSample, build, pack_supervised, read_jsonl, read_row
from prl_train.data.sft_rows import KNOWN_COLUMNS
from prl_train.errors import CheckpointError, DataError
from prl_train.storage import file_sha256
from prl_train.trainer.checkpoint import checkpoint_path, latest_checkpoint, remove_old_checkpoints
from prl_train.trainer.trainer import Trainer

from .config import SftConfig

LOG = logging.getLogger("prl.sft")
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
    replaces the one built from the settings (not yet loaded).
    """
    renderer = _renderer(config)
    packer = _packer(config, renderer)
    trainer = trainer or Trainer(config.trainer.model_copy(update={"model": config.model}))
    trainer.load()
    checkpoints = config.directory / "checkpoints"
    _resume(trainer, packer, config, checkpoints, resume)
    done: list[dict[str, float]] = []
    for rows in _steps(packer, config, trainer):
        metrics = trainer.sft_step(rows) | {"truncated": float(packer.truncated), "dropped": float(packer.dropped)}
        done.append(metrics)
        _log(config.directory / "metrics.jsonl", metrics)
        if on_step is not None:
            on_step(trainer.step_number, metrics)
        every = config.trainer.checkpoint_every
        if every and trainer.step_number % every == 0:
            _save(trainer, packer, config, checkpoints)
    last = _save(trainer, packer, config, checkpoints)
    weights = trainer.publish_weights(config.directory / "weights", trainer.step_number)
    return SftResult(trainer.step_number, done, last, weights)


def _renderer(config: SftConfig) -> Renderer:
    from prl import create_renderer, load_tokenizer

    tokenizer = load_tokenizer(config.model)
    renderer: Renderer = create_renderer(tokenizer, config.renderer, model=config.model, **config.renderer_options)
    return renderer


def _packer(config: SftConfig, renderer: Renderer) -> SftPacker:
    rows = _rows(config.data.path)

    def sample(index: int) -> SftSample | None:
        where = f"{config.data.path}, row {index + 1}"
        try:
            return build(renderer, rows[index], roles=config.data.roles, index=index)
        except RenderError as error:
            if config.data.bad_rows == "skip":
                LOG.warning("%s is skipped: %s", where, error.what)
                return None
            step = f"{error.next_step}; or set data.bad_rows = 'skip'"
            raise DataError(error.what, where=f"{where}: {error.where}", next_step=step) from error

    source = IndexedSource(
        len(rows),
        sample,
        seed=config.trainer.seed,
        shuffle=config.data.shuffle,
        epochs=None if config.steps is not None else config.epochs,
    )
    return SftPacker(source, config.trainer.seq_len)


def _rows(path: Path) -> list[SftRow]:
    """Read all rows before the first step: a bad row must not wait for the night to stop the run."""
    rows = [read_row(row, f"{path}, row {number}") for number, row in enumerate(read_jsonl(path), start=1)]
    if not rows:
        raise ConfigError("the data file has no rows", where=str(path), next_step="give at least one row")
    unknown = sorted({column for row in rows for column in row.unknown_columns})
    if unknown:
        known = ", ".join(sorted(KNOWN_COLUMNS))
        LOG.warning("columns of %s that are not used: %s (known: %s)", path, ", ".join(unknown), known)
    return rows


def _steps(packer: SftPacker, config: SftConfig, trainer: Trainer) -> Iterator[Sequence[MicroBatch]]:
    """Yield the rows of each step that is left."""
    while config.steps is None or trainer.step_number < config.steps:
        rows: list[MicroBatch] = []
        while len(rows) < config.rows_per_step:
            try:
                rows.append(pack_supervised(packer.next_samples()))
            except StopIteration:
                break
        if not rows:
            return
        yield rows


def _resume(trainer: Trainer, packer: SftPacker, config: SftConfig, checkpoints: Path, resume: bool) -> None:
    newest = latest_checkpoint(checkpoints)
    if newest is None:
        _forget_metrics_after(config.directory / "metrics.jsonl", 0)
        return
    if not resume:
        raise ConfigError(
            "the run directory already holds checkpoints",
            where=str(checkpoints),
            next_step="resume the run (`prl sft --resume`), or give another `directory`",
        )
    extra = trainer.load_checkpoint(newest)
    if extra.get("data_sha256") != file_sha256(config.data.path):
        raise CheckpointError(
            "the data file changed since the checkpoint was made",
            where=str(config.data.path),
            next_step="resume with the same data file, or start a new run in another `directory`",
        )
    packer.load_state_dict(extra["packer"])
    _forget_metrics_after(config.directory / "metrics.jsonl", trainer.step_number)


def _save(trainer: Trainer, packer: SftPacker, config: SftConfig, checkpoints: Path) -> Path:
    extra = {"packer": packer.state_dict(), "data_sha256": file_sha256(config.data.path)}
    target = checkpoint_path(checkpoints, trainer.step_number)
    saved = trainer.save_checkpoint(target, extra)
    remove_old_checkpoints(checkpoints, config.trainer.keep_checkpoints)
    return saved


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
