"""Going on with a supervised run: which of its settings are fixed, and which the new start may change."""

from __future__ import annotations

import logging
from typing import Any

from prl_train.changes import differences
from prl_train.errors import CheckpointError

from .config import SftConfig

LOG = logging.getLogger("prl.sft")

FIXED = (
    "model",
    "use_renderer",
    "renderer",
    "renderer_options",
    "data.roles",
    "data.samples",
    "data.shuffle",
    "trainer.seed",
    "trainer.lora",
)
"""What says which tokens are trained and in which order: half a run with one and half with another is neither."""

ELSEWHERE = ("directory", "steps", "epochs", "eval", "data.path", "data.sources", "data.workers", "data.check_rows")
"""What changes no step; rows are compared by their contents, wherever they lie."""


def settings_of(config: SftConfig) -> dict[str, Any]:
    """Return what a checkpoint keeps of the configuration, as JSON data."""
    return config.model_dump(mode="json")


def compare_settings(saved: dict[str, Any], config: SftConfig) -> None:
    """Raise `CheckpointError` for settings that may not change; say which others did, for the new ones hold."""
    changed = differences(_completed(saved, config), settings_of(config))
    fixed = [name for name in changed if _is_in(name, FIXED)]
    if fixed:
        raise CheckpointError(
            f"the checkpoint was made with other settings; these differ: {', '.join(fixed)}",
            where=str(config.directory),
            next_step="resume with the run's own settings, or start a new run in another `directory`; its model "
            "may be the weights of this one",
        )
    told = [name for name in changed if not _is_in(name, ELSEWHERE)]
    if told:
        LOG.warning("the run goes on with other settings than before: %s", ", ".join(told))


def _completed(saved: dict[str, Any], config: SftConfig) -> dict[str, Any]:
    """Return saved settings with the defaults of those that the version which wrote them did not have."""
    try:
        return settings_of(SftConfig.model_validate(saved))
    except ValueError as error:
        raise CheckpointError(
            f"the settings in the checkpoint cannot be read: {error}",
            where=str(config.directory),
            next_step="the checkpoint was made by another version of prl-train; use that one, or start a new run",
        ) from error


def _is_in(name: str, sections: tuple[str, ...]) -> bool:
    return any(name == section or name.startswith(f"{section}.") for section in sections)
