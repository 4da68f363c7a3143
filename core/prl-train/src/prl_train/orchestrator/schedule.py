"""Which task a group works on: a pure function of seed and group number, so that a resumed run repeats nothing."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass

from prl.contracts import AgentEnvironment, Environment, Example
from prl.types import PrlError, ToolSpec

from .answers import EnvironmentAnswerError, check_example

AnyEnvironment = Environment | AgentEnvironment


@dataclass(frozen=True, slots=True)
class WeightedEnvironment:
    """An environment and its share of the groups."""

    environment: AnyEnvironment
    weight: float = 1.0


class Schedule:
    """Group number to environment and example."""

    def __init__(self, environments: Sequence[WeightedEnvironment], seed: int) -> None:
        self.environments = list(environments)
        self.seed = seed
        self._weights = [entry.weight for entry in environments]

    def environment(self, group: int) -> AnyEnvironment:
        """Return the environment of a group."""
        draw = random.Random(f"{self.seed}/{group}")
        return draw.choices(self.environments, weights=self._weights)[0].environment

    def task(self, group: int) -> tuple[AnyEnvironment, Example]:
        """Return the environment and the example of a group; raise `PrlError` where the environment has none."""
        chosen = self.environment(group)
        where = f"environment {chosen.name!r}, example({group})"
        try:
            example = chosen.example(group)
        except PrlError:
            raise
        except (Exception, SystemExit) as error:
            raise EnvironmentAnswerError(
                f"example({group}) failed: {type(error).__name__}: {error}",
                where=where,
                next_step="an environment must have an example for any number from 0 on: repair it, or its data",
            ) from error
        return chosen, check_example(example, where)

    def rollout_seed(self, group: int, member: int) -> int:
        """Return the sampling seed of one rollout (31 bits)."""
        return derived_seed(self.seed, f"{group}/{member}")


def derived_seed(seed: int, part: str) -> int:
    """Return the seed (31 bits) of one part of what `seed` stands for."""
    digest = hashlib.blake2b(f"{seed}/{part}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") >> 1


def tools_of(environment: AnyEnvironment) -> Sequence[ToolSpec] | None:
    """Return the tools that the environment offers; an agent brings its own, which nobody here knows."""
    return environment.tools if isinstance(environment, Environment) else None
