"""Errors of the training side, in the three parts of `PrlError`."""

from __future__ import annotations

from prl.types import PrlError


class DataError(PrlError):
    """A row of a data set cannot be used; `where` names the file and the line."""

    code = "data"


class CheckpointError(PrlError):
    """A checkpoint or a weights directory is incomplete, damaged or belongs to another model."""

    code = "checkpoint"


class TrainingError(PrlError):
    """A training step cannot be done: no target, or a loss that is not finite."""

    code = "training"


class WorkerError(PrlError):
    """One of several trainer processes failed, or differs from the others."""

    code = "worker"
