"""Find the config model of a command, which its record names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prl.plugin import CommandEntry, Registry
from prl.plugin.loader import import_value
from prl.types import ConfigError, close_names

if TYPE_CHECKING:
    from pydantic import BaseModel


def config_model(registry: Registry, command: str) -> type[BaseModel]:
    """Return a command's config model; raise `ConfigError` with the commands that have one."""
    with_config = {entry.name: entry for entry in registry.all(CommandEntry) if entry.config}
    if command not in with_config:
        names = sorted(with_config)
        raise ConfigError(
            f"no command {command!r} has a config",
            where="prl config",
            next_step=f"{close_names(command, names)} Commands with a config: {', '.join(names) or 'none'}.".strip(),
        )
    model: type[BaseModel] = import_value(with_config[command].config)  # type: ignore[assignment]
    return model
