"""Find the loss that the configuration names."""

from __future__ import annotations

from typing import Any

from prl.contracts import Loss
from prl.plugin import LossEntry, build_options, get_registry, load_target
from prl.types import ConfigError

from .loss_config import LossConfig
from .streams import OPTIONAL_STREAMS


def resolve_loss(config: LossConfig) -> Loss:
    """Create the loss; raise `PluginError` where nobody offers it, `ConfigError` where an option is wrong."""
    record = get_registry().find(LossEntry, config.name)
    options = build_options(record, config.values(), where="[trainer.loss]")
    loss: Any = load_target(record)(options)
    check_loss(loss, config.name)
    return loss  # type: ignore[no-any-return]


def check_loss(loss: Loss, name: str) -> None:
    """Raise `ConfigError` where a loss asks for what no batch can have."""
    unknown = sorted(set(loss.streams) - OPTIONAL_STREAMS.keys())
    if unknown or loss.unit not in ("tokens", "sequences"):
        wrong = f"needs {', '.join(unknown)}" if unknown else f"is counted in {loss.unit!r}"
        raise ConfigError(
            f"the loss {name!r} {wrong}, which the trainer does not know",
            where=f"trainer.loss.name = {name!r}",
            next_step=f"streams: {', '.join(sorted(OPTIONAL_STREAMS))}; units: tokens, sequences",
        )
