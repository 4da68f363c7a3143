"""The `[plugins]` section, the same in every config."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, Field

from prl.plugin import PluginSettings


class PluginsConfig(BaseModel):
    """Which plugins are off, which must load, and which of two providers is meant."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    disable: tuple[str, ...] = ()
    require: tuple[str, ...] = ()
    prefer: dict[str, str] = Field(default_factory=dict)
    strict: bool = False

    def settings(self, environment: Mapping[str, str] | None = None) -> PluginSettings:
        """Return the environment's settings with this section's added, for `configure_registry`."""
        base = PluginSettings.from_environment(environment)
        return base.with_config(disable=self.disable, require=self.require, prefer=self.prefer, strict=self.strict)
