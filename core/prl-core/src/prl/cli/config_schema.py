"""`prl config schema COMMAND`."""

from __future__ import annotations

from prl.config import config_schema
from prl.plugin import get_registry

from .config_models import config_model


def run(command: str, /) -> None:
    """Print the JSON schema of a command's config.

    Parameters
    ----------
    command
        The command whose config it is, such as rl.
    """
    print(config_schema(config_model(get_registry(), command)))
