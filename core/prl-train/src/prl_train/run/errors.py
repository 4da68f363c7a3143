"""Errors of a run as a whole."""

from __future__ import annotations

from prl.types import PrlError


class RunError(PrlError):
    """The run cannot start or go on."""

    code = "run"


class PeerError(RunError):
    """Another process of the run failed or does not answer."""

    code = "peer"


class DeadStateError(RunError):
    """Every reward is the same for many batches: there is nothing to learn from."""

    code = "dead_state"
