"""The trainer of a run in several local processes, started and ended by this one."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path

from prl_train.config import RLConfig
from prl_train.distributed.local import LocalProcesses, ParentLine

MODULE = "prl_train.launch.trainers"


class LocalTrainers:
    """Runs a configuration's trainer as `trainer.processes` processes; a stand-in for one `TrainLoop`."""

    def __init__(self, config: RLConfig) -> None:
        self.config = config

    def run(self, stop: threading.Event) -> None:
        """Start them and wait for their end; raise `WorkerError` where one fails."""
        with tempfile.TemporaryDirectory(prefix="prl-trainers-") as folder:
            # JSON, not TOML: an option that is null must stay null.
            settings = Path(folder) / "config.json"
            settings.write_text(self.config.model_dump_json(), encoding="utf-8")
            processes = LocalProcesses(self.config.trainer.processes, ["-m", MODULE, str(settings)])
            try:
                processes.wait(stop)
            finally:
                processes.end()


def main(settings: str) -> int:
    """Be one of the processes."""
    from prl.types import PrlError

    from .processes import train_in_world

    line = ParentLine()
    config = RLConfig.model_validate_json(Path(settings).read_text(encoding="utf-8"))
    try:
        train_in_world(config, line.stop)
    except PrlError:
        return 1  # the parent has word of it
    return 0


if __name__ == "__main__":
    import sys

    sys.exit(main(sys.argv[1]))
