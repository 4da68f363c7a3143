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
    from prl_train.sft import SftConfig, run_sft

    checked = load_config(SftConfig, config, overrides)

    def on_step(step: int, metrics: dict[str, float]) -> None:
        print(f"step {step}  loss {metrics['loss']:.4f}", flush=True)

    result = run_sft(checked, resume=resume, on_step=on_step)
    print(f"trained to step {result.step}\n  weights     {result.weights}\n  checkpoint  {result.checkpoint}")
