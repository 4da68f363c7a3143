"""One checked config from TOML, environment and command line; plugin sections in a second stage."""

from .load import check_plugin_options, load_config, locate_key
from .plugins import PluginsConfig
from .show import config_schema, to_toml
from .sources import Sources, read_sources

__all__ = [
    "PluginsConfig",
    "Sources",
    "check_plugin_options",
    "config_schema",
    "load_config",
    "locate_key",
    "read_sources",
    "to_toml",
]
