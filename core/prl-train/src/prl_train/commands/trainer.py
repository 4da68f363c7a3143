"""`prl trainer`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def run(*overrides: str, config: Annotated[Path, Parameter(name=("--config", "-c"))]) -> None:
    """Run the training side of a run; `prl orchestrator` runs beside it, on the same run.directory.

    Under torchrun every process is one of the trainer's; else `trainer.processes` of them are started here.

    Parameters
    ----------
    overrides
        Values as dotted.key=value.
    config
        The run's TOML file, the same for both processes.
    """
    from prl.config import read_sources
    from prl_train.config import RLConfig

    sources = read_sources(RLConfig, config, overrides)
    checked = sources.load(RLConfig)

    from prl_train.distributed import find_place
    from prl_train.launch.processes import run_trainer

    from .told import tell_stop

    with sources.telling(), tell_stop(checked.run.directory, "trainer", "-c", str(config), *overrides):
        steps = run_trainer(checked)
    if find_place().is_main:
        print(f"trained {steps} steps; weights and checkpoints are in {checked.run.directory}")
