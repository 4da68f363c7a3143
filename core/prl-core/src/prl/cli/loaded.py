"""The registry as the listing commands see it: loaded in a child process, or not at all."""

from __future__ import annotations

from prl.plugin import PluginSettings, Registry, discover
from prl.plugin.probe import DEFAULT_LIMIT_S, no_load, probe_plugins


def probed_registry(*, load: bool = True, limit_s: float = DEFAULT_LIMIT_S) -> Registry:
    """Return a registry whose plugins were imported outside this process, each for at most `limit_s` seconds."""
    settings = PluginSettings.from_environment()

    if not load:
        return Registry.build(discover(), settings, no_load)
    return Registry.build(discover(), settings, lambda plugins: probe_plugins(plugins, limit_s))
