"""Which task a group works on: a pure function of seed and group number, so that a resumed run repeats nothing."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass

from prl.contracts import Environment, Example


@dataclass(frozen=True, slots=True)
class WeightedEnvironment:
    """An environment and its share of the groups."""

    environment: Environment
    weight: float = 1.0


class Schedule:
    """Group number to environment and example."""

    def __init__(self, environments: Sequence[WeightedEnvironment], seed: int) -> None:
        self.environments = list(environments)
        self.seed = seed
        self._weights = [entry.weight for entry in environments]

    def task(self, group: int) -> tuple[Environment, Example]:
        """Return the environment and the example of a group."""
        draw = random.Random(f"{self.seed}/{group}")
        chosen = draw.choices(self.environments, weights=self._weights)[0].environment
        return chosen, chosen.example(group)

    def rollout_seed(self, group: int, member: int) -> int:
        """Return the sampling seed of one rollout (31 bits)."""
        digest = hashlib.blake2b(f"{self.seed}/{group}/{member}".encode(), digest_size=4).digest()
        return int.from_bytes(digest, "big") >> 1
