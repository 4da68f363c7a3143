"""`prl rl`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def run(
    *overrides: str,
    config: Annotated[Path, Parameter(name=("--config", "-c"))],
    resume: bool = False,
    overwrite: bool = False,
) -> None:
    """Train a model with rewards: engine, orchestrator and trainer in one process.

    Parameters
    ----------
    overrides
        Values as dotted.key=value, such as orchestrator.steps=10.
    config
        The run's TOML file.
    resume
        Go on with the run in run.directory.
    overwrite
        Replace the run in run.directory.
    """
    from prl.config import read_sources
    from prl.types import ConfigError
    from prl_train.config import RLConfig

    if resume and overwrite:
        raise ConfigError(
            "--resume and --overwrite exclude each other", where="prl rl", next_step="give one of them, or none"
        )
    existing = [f"run.existing={value}" for value, wanted in (("resume", resume), ("overwrite", overwrite)) if wanted]
    sources = read_sources(RLConfig, config, [*overrides, *existing])
    checked = sources.load(RLConfig)

    from prl_train.launch.processes import run_everything

    from .told import tell_outcome, tell_stop

    with sources.telling(), tell_stop(checked.run.directory, "rl", "-c", str(config), "--resume", *overrides):
        outcome = run_everything(checked)
    tell_outcome(checked, outcome.note)
