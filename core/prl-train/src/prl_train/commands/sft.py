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
    from prl.config import load_config
    from prl_train.sft import SftConfig

    checked = load_config(SftConfig, config, overrides)

    from prl_train.sft.processes import run_here

    run_here(checked, resume)
