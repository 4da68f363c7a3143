"""A process's place among the trainer's processes, read from the environment that torchrun sets. No torch here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from prl.types import ConfigError


@dataclass(frozen=True, slots=True)
class Place:
    """Number of this process, number of all, and number among those of this machine."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0

    @property
    def is_main(self) -> bool:
        """Whether this process writes what one process writes: records, weights, pointers."""
        return self.rank == 0


def find_place(environment: Mapping[str, str] | None = None) -> Place:
    """Return this process's place; alone where no launcher set one. Raises `ConfigError` for half an environment."""
    values = os.environ if environment is None else environment
    size = _number(values, "WORLD_SIZE", 1)
    if size == 1:
        return Place()
    absent = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if not values.get(name)]
    if absent:
        raise ConfigError(
            f"WORLD_SIZE says {size} processes, but {', '.join(absent)} is not set",
            where="the environment",
            next_step="start the trainer with torchrun, or unset WORLD_SIZE",
        )
    rank = _number(values, "RANK", 0)
    return Place(rank, size, _number(values, "LOCAL_RANK", rank))


def _number(values: Mapping[str, str], name: str, default: int) -> int:
    text = values.get(name, "")
    if text and not text.isdigit():
        raise ConfigError(
            f"{name} is {text!r}, not a number",
            where="the environment",
            next_step="start the trainer with torchrun, which sets it, or unset it",
        )
    return int(text) if text else default
