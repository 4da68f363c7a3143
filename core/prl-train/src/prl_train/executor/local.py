"""The executor `local`: rollouts are played in the orchestrator's own process."""

from __future__ import annotations

from prl.plugin.options import NoOptions
from prl.plugin.worker import HeldWorker


class LocalExecutor(HeldWorker):
    """One worker, on the orchestrator's event loop."""

    def __init__(self) -> None:
        super().__init__('executor "local"')


def create(options: NoOptions) -> LocalExecutor:
    """Create the executor."""
    return LocalExecutor()
