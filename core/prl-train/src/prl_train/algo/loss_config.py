"""Which loss the trainer minimises; no torch here, so that a configuration can be read without it."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from prl.types import ConfigError


class LossConfig(BaseModel):
    """The loss by name; every other key of the section is an option of that loss, checked by the loss's own model.

    Options may also stand in `[trainer.loss.options]`, as for every other plugin.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str = Field(default="grpo", description="name of a loss plugin: `prl plugins list --kind loss`")
    options: dict[str, Any] = Field(default_factory=dict, description="the loss's own options")

    def values(self) -> dict[str, Any]:
        """Return the loss's options from both places; raise `ConfigError` where one is given twice."""
        beside = dict(self.model_extra or {})
        twice = sorted(beside.keys() & self.options.keys())
        if twice:
            raise ConfigError(
                f"{', '.join(twice)} is given twice",
                where="[trainer.loss] and [trainer.loss.options]",
                next_step="keep it in one of the two",
            )
        return beside | self.options
