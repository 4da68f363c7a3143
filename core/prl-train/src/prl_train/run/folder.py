"""The layout of a run folder and the hand-over of batches and weights inside it."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from prl_train.storage import sweep_unfinished

from .batch import StepBatch, decode_batch, encode_batch
from .errors import RunError
from .files import TEMPORARY, read_json, sweep, write_bytes, write_json
from .owner import alone_in, hold
from .status import StatusBoard

MARKER = "run.json"
_KIND = {"kind": "prl run", "format": 1}
_OWN_FOLDERS = (
    *("batches", "trained", "weights", "checkpoints", "rollouts", "status", "model", "sinks", "evaluations"),
    "transfer",
)
_OWN_FILES = (MARKER, "config.toml", "plugins.json", "metrics.jsonl", "warmup.jsonl", "report.html", "progress.json")


class RunFolder:
    """Paths of one run, and its atomic reads and writes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.config = root / "config.toml"
        self.plugins = root / "plugins.json"
        self.metrics = root / "metrics.jsonl"
        self.warmup = root / "warmup.jsonl"
        self.progress = root / "progress.json"
        self.report = root / "report.html"
        self.rollouts = root / "rollouts"
        self.batches = root / "batches"
        self.trained = root / "trained"
        self.weights = root / "weights"
        self.checkpoints = root / "checkpoints"
        self.evaluations = root / "evaluations"
        self.transfer = root / "transfer"
        self.model = root / "model"
        self.status = StatusBoard(root / "status")
        self._digests: dict[int, str] = {}
        # One writer a directory: what it left half-written can then be swept without asking whose it is.
        self._written_by = {
            "orchestrator": (self.batches, self.rollouts, self.evaluations, self.transfer / "orchestrator"),
            "trainer": (self.trained, self.weights, self.checkpoints, self.transfer / "trainer"),
        }
        self._files_of = {"orchestrator": (self.progress.name, self.report.name), "trainer": ()}
        # What the first process makes, whichever that is: see `shared`.
        self._shared_files = (MARKER, self.config.name, self.plugins.name)

    # -- the folder itself

    def is_run(self) -> bool:
        """Whether the folder holds a run of ours."""
        return (self.root / MARKER).is_file()

    def claim(self) -> None:
        """Make the folder a run folder; refuse one that holds something else; end a clearing that was cut short."""
        if self.is_run():
            if (read_json(self.root / MARKER) or {}).get("clearing"):
                self.clear()
            return
        # A process that was killed here may have left the marker under its temporary name.
        others = [path for path in _entries(self.root) if not path.match(f".{MARKER}{TEMPORARY}")]
        if others and not self.is_run():  # where nothing keeps others out, one may have been quicker
            raise RunError(
                f"{self.root} is not empty and is not a run folder",
                where="run.directory",
                next_step="name a new or empty directory",
                keys=[("run", "directory")],
            )
        write_json(self.root / MARKER, _KIND)

    def is_unused(self) -> bool:
        """Whether no batch was handed over and nothing was played: all that is there is made again by any start."""
        begun = (self.batches, self.trained, self.checkpoints, self.rollouts, self.evaluations)
        has_rows = self.metrics.is_file() and self.metrics.stat().st_size > 0
        return not has_rows and not any(self._holds_something(directory) for directory in begun)

    @staticmethod
    def _holds_something(directory: Path) -> bool:
        return any(not path.name.startswith(".") for path in _entries(directory))

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Claim the folder and make what all its processes share, one process at a time.

        What a killed process left half-made of that is removed first. Where the file system cannot keep others out, it
        stays, and whoever makes something must expect another to be quicker.
        """
        try:
            self.root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(
                f"the run folder cannot be made: {error.strerror or error}",
                where=f"run.directory = {str(self.root)!r}",
                next_step="name a directory that this process may write to",
                keys=[("run", "directory")],
            ) from error
        with alone_in(self.root) as is_alone:
            self.claim()
            if is_alone:
                self._sweep_shared()
            yield

    def _sweep_shared(self) -> None:
        for name in self._shared_files:
            sweep(self.root, name)
        sweep_unfinished(self.root, self.model.name)

    @contextmanager
    def owned(self, part: str) -> Iterator[None]:
        """Be the run's one `part` ("orchestrator" or "trainer"); remove what a killed one left half-written.

        Raises `RunError` where another process is that part.
        """
        with hold(self.status.directory / f"{part}.lock", part):
            for directory in self._written_by[part]:
                sweep(directory)
                sweep_unfinished(directory)
            for name in self._files_of[part]:
                sweep(self.root, name)
            sweep(self.status.directory, f"{part}.json")
            yield

    def clear(self, *, must_be_certain: bool = False) -> None:
        """Remove what an earlier run left; only files that a run writes are touched, and the folder stays a run's.

        Raises `RunError` where a process of that run is still running, and with `must_be_certain` also where the file
        system cannot tell. Half of a run must not be taken for one: where clearing is cut short, `claim` goes on with
        it.
        """
        if not self.is_run():
            return
        with ExitStack() as held:
            locks = {part: self.status.directory / f"{part}.lock" for part in self._written_by}
            certain = [held.enter_context(hold(lock, part)) for part, lock in locks.items()]
            if must_be_certain and not all(certain):
                raise RunError(
                    "whether a process of this run is running cannot be told here",
                    where=str(self.status.directory),
                    next_step="see that none is, and start `prl rl` with --overwrite, or name another run.directory",
                )
            write_json(self.root / MARKER, {**_KIND, "clearing": True})
            self._sweep_shared()
            for name in _OWN_FOLDERS:
                shutil.rmtree(self.root / name, ignore_errors=True)
            for name in _OWN_FILES:
                sweep(self.root, name)
                if name != MARKER:
                    (self.root / name).unlink(missing_ok=True)
            write_json(self.root / MARKER, _KIND)

    # -- orchestrator -> trainer

    def batch_path(self, step: int) -> Path:
        """Return where the batch of `step` lies."""
        return self.batches / f"batch_{step:06d}.msgpack"

    def write_batch(self, batch: StepBatch) -> None:
        """Hand a batch to the trainer."""
        write_bytes(self.batch_path(batch.step), encode_batch(batch))

    def read_batch(self, step: int) -> StepBatch | None:
        """Return the batch of `step`, None where it is not there yet."""
        path = self.batch_path(step)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        self._digests[step] = hashlib.sha256(data).hexdigest()
        return decode_batch(data, where=str(path))

    def batch_steps(self) -> list[int]:
        """Return the steps whose batches are there, in order."""
        return _numbers(self.batches, r"batch_(\d+)\.msgpack")

    def prune_batches(self, before: int) -> None:
        """Remove batches of steps below `before`."""
        for step in self.batch_steps():
            if step < before:
                self.batch_path(step).unlink(missing_ok=True)

    # -- trainer -> orchestrator

    def write_weights_pointer(self, version: int, directory: Path) -> None:
        """Say which weights are the newest; `directory` must be complete."""
        write_json(self.weights / "latest.json", {"version": version, "directory": str(directory.resolve())})

    def latest_weights(self) -> tuple[int, str] | None:
        """Return (version, directory) of the newest weights, None before the first."""
        value = read_json(self.weights / "latest.json")
        return None if value is None else (int(value["version"]), str(value["directory"]))

    def write_checkpoint_pointer(self, step: int, directory: Path) -> None:
        """Say which checkpoint is the newest whole one; `step` batches went into it."""
        write_json(self.checkpoints / "latest.json", {"step": step, "directory": directory.name})

    def latest_checkpoint(self) -> tuple[int, Path] | None:
        """Return (batches trained, directory) of the newest whole checkpoint, None before the first."""
        value = read_json(self.checkpoints / "latest.json")
        return None if value is None else (int(value["step"]), self.checkpoints / str(value["directory"]))

    def write_trained(self, step: int, metrics: dict[str, float]) -> None:
        """Record what the trainer measured on the batch of `step`, and the sha256 of the batch as this folder read it.

        Raises `RunError` where another batch was trained in its place before: a resumed trainer repeats, never changes.
        """
        path = self.trained / f"step_{step:06d}.json"
        digest, before = self._digests.pop(step, None), self.trained_batch(step)
        if None not in (digest, before) and digest != before:
            raise RunError(
                f"the batch of step {step} is not the one that was trained before",
                where=f"{self.batch_path(step)}, {path}",
                next_step="batches/ was changed by hand or belongs to another run; restore it, or use a new directory",
            )
        write_json(path, {**metrics, "batch_sha256": digest or before})

    def trained_steps(self) -> list[int]:
        """Return the steps whose measures are there, in order."""
        return _numbers(self.trained, r"step_(\d+)\.json")

    def prune_trained(self, before: int) -> None:
        """Remove what was measured on steps below `before`."""
        for step in self.trained_steps():
            if step < before:
                (self.trained / f"step_{step:06d}.json").unlink(missing_ok=True)

    def trained_batch(self, step: int) -> str | None:
        """Return the sha256 of the batch that was trained at `step`, None where none was."""
        value = read_json(self.trained / f"step_{step:06d}.json")
        return None if value is None else value.get("batch_sha256")

    def read_trained(self, step: int) -> dict[str, float] | None:
        """Return the trainer's metrics of `step`, None where it is not trained yet."""
        value = read_json(self.trained / f"step_{step:06d}.json")
        if value is None:
            return None
        return {str(key): float(number) for key, number in value.items() if key != "batch_sha256"}

    # -- rollouts

    def rollout_path(self, step: int) -> Path:
        """Return where the rollouts of `step` are logged."""
        return self.rollouts / f"step_{step:06d}.jsonl"

    def rollout_steps(self) -> list[int]:
        """Return the steps whose rollouts are logged, in order."""
        return _numbers(self.rollouts, r"step_(\d+)\.jsonl")

    def prune_rollouts(self, before: int) -> None:
        """Remove the logged rollouts of steps below `before`."""
        for step in self.rollout_steps():
            if step < before:
                self.rollout_path(step).unlink(missing_ok=True)

    # -- evaluations

    def evaluation_path(self, name: str, version: int) -> Path:
        """Return where the metrics of an evaluation lie, once it is done."""
        return self.evaluations / name / f"step_{version:06d}.json"

    def evaluation_rollouts(self, name: str, version: int) -> Path:
        """Return where the rollouts of an evaluation are logged."""
        return self.evaluations / name / f"step_{version:06d}.jsonl"

    def prune_evaluation_rollouts(self, name: str, keep: int) -> None:
        """Remove the logged rollouts of an evaluation but those of its last `keep` versions; its metrics stay."""
        for version in _numbers(self.evaluations / name, r"step_(\d+)\.jsonl")[:-keep]:
            self.evaluation_rollouts(name, version).unlink(missing_ok=True)

    def evaluated_steps(self, name: str) -> list[int]:
        """Return the weight versions that an evaluation is done for, in order."""
        return _numbers(self.evaluations / name, r"step_(\d+)\.json")

    def read_evaluations(self) -> list[tuple[str, int, dict[str, float]]]:
        """Return (name, weight version, metrics) of every evaluation that is done, in the order of versions."""
        names = sorted(path.name for path in self.evaluations.iterdir()) if self.evaluations.is_dir() else []
        done = [(name, version) for name in names for version in self.evaluated_steps(name)]
        read = [(name, version, read_json(self.evaluation_path(name, version))) for name, version in done]
        return sorted(((name, version, values or {}) for name, version, values in read), key=lambda one: one[:2][::-1])

    def outputs(self) -> dict[str, Path]:
        """Return what a finished run offers, by name, as far as it exists."""
        named: dict[str, Any] = {
            "report": self.report,
            "metrics": self.metrics,
            "rollouts": self.rollouts,
            "evaluations": self.evaluations,
            "weights": self.weights,
            "checkpoints": self.checkpoints,
            "config": self.config,
            "plugins": self.plugins,
        }
        return {name: path for name, path in named.items() if path.exists()}


def _entries(directory: Path) -> list[Path]:
    return list(directory.iterdir()) if directory.is_dir() else []


def _numbers(directory: Path, pattern: str) -> list[int]:
    if not directory.is_dir():
        return []
    found = (re.fullmatch(pattern, entry.name) for entry in directory.iterdir())
    return sorted(int(match[1]) for match in found if match)
