"""The trainer of a run in several local processes, started and ended by this one."""

from __future__ import annotations

import threading

from prl_train.config import RLConfig
from prl_train.distributed.configured import be_configured, run_configured

MODULE = "prl_train.launch.trainers"


class LocalTrainers:
    """Runs a configuration's trainer as `trainer.processes` processes; a stand-in for one `TrainLoop`."""

    def __init__(self, config: RLConfig) -> None:
        self.config = config

    def run(self, stop: threading.Event) -> None:
        """Start them and wait for their end; raise `WorkerError` where one fails."""
        run_configured(MODULE, self.config, self.config.trainer.processes, stop)


def main(settings: str) -> int:
    """Be one of the processes."""
    from .processes import train_in_world

    return be_configured(RLConfig, settings, train_in_world)


if __name__ == "__main__":
    import sys

    sys.exit(main(sys.argv[1]))
