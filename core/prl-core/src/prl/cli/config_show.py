"""`prl config show COMMAND`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from prl.config import load_config, to_toml
from prl.plugin import configure_registry

from .config_models import config_model
from .settings import settings_for


def run(
    command: str,
    /,
    *overrides: str,
    config: Annotated[Path | None, Parameter(name=("--config", "-c"))] = None,
) -> None:
    """Print a command's config, resolved and checked, as TOML.

    Parameters
    ----------
    command
        The command whose config it is, such as rl.
    overrides
        Values as dotted.key=value.
    config
        The TOML file; the model's defaults where absent.
    """
    registry = configure_registry(settings_for(["-c", str(config)] if config else []))
    print(to_toml(load_config(config_model(registry, command), config, overrides)), end="")
