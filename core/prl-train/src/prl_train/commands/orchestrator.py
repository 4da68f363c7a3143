"""`prl orchestrator`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def run(*overrides: str, config: Annotated[Path, Parameter(name=("--config", "-c"))]) -> None:
    """Run the rollout side of a run against the engine at engine.url; `prl trainer` runs beside it.

    Parameters
    ----------
    overrides
        Values as dotted.key=value, such as engine.url=http://127.0.0.1:8000.
    config
        The run's TOML file, the same for both processes.
    """
    from prl.config import read_sources
    from prl_train.config import RLConfig

    sources = read_sources(RLConfig, config, overrides)
    checked = sources.load(RLConfig)

    from prl_train.launch.processes import run_orchestrator

    from .told import tell_outcome, tell_stop

    with sources.telling(), tell_stop(checked.run.directory, "orchestrator", "-c", str(config), *overrides):
        outcome = run_orchestrator(checked)
    tell_outcome(checked, outcome.note)
