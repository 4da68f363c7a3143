"""`prl sft`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def run(
    *overrides: str,
    config: Annotated[Path, Parameter(name=("--config", "-c"))],
    resume: bool = False,
) -> None:
    """Train a model on conversations.

    Under torchrun every process is one of the trainer's; else `trainer.processes` of them are started here.

    Parameters
    ----------
    overrides
        Values as dotted.key=value, such as trainer.lr=1e-4.
    config
        The TOML file.
    resume
        Go on from the newest checkpoint in the run's directory.
    """
    from prl.config import read_sources
    from prl_train.sft import SftConfig

    sources = read_sources(SftConfig, config, overrides)
    checked = sources.load(SftConfig)

    from prl_train.sft.processes import run_here

    from .told import tell_stop

    with sources.telling(), tell_stop(checked.directory, "sft", "-c", str(config), "--resume", *overrides):
        run_here(checked, resume)
