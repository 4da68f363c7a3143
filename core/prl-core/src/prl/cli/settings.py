"""Which plugins a command may load: the environment, and the `[plugins]` section of the config file it was given."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from prl.plugin import PluginSettings
from prl.types import ConfigError


def settings_for(words: Sequence[str]) -> PluginSettings:
    """Return the settings for a command line. The file is read before any plugin loads, so that `disable` holds."""
    path = _config_path(words)
    if path is None or not path.is_file():
        return PluginSettings.from_environment()
    from prl.config import PluginsConfig, Sources, locate_key
    from prl.config.layers import read_toml
    from prl.plugin.options import build_model

    data, text = read_toml(path)
    section = data.get("plugins", {})
    if not isinstance(section, dict):
        raise ConfigError(
            "'plugins' is not a section", where=locate_key(path, ("plugins",)), next_step="Write [plugins]."
        )
    with Sources(path, data, text).telling():
        return build_model(PluginsConfig, section, where="", section=("plugins",)).settings()


def _config_path(words: Sequence[str]) -> Path | None:
    for position, word in enumerate(words):
        if word in ("-c", "--config") and position + 1 < len(words):
            return Path(words[position + 1])
        if word.startswith("--config="):
            return Path(word.removeprefix("--config="))
    return None
