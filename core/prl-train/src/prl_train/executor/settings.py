"""All that a worker is made from, as JSON data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field, PositiveInt

from prl.config import PluginsConfig
from prl.plugin import create
from prl.types import SamplingParams
from prl_train.config import (
    EngineSection,
    EnvironmentSection,
    EvaluationSection,
    GatewaySection,
    ImagesSection,
    Options,
    SamplingSection,
    Section,
)
from prl_train.orchestrator.schedule import Schedule, WeightedEnvironment, derived_seed
from prl_train.teacher.config import TeacherRolloutsSection


class WorkerSettings(Section):
    """How a worker plays: with the same settings, every worker plays the same rollouts.

    `engine_key` finds a client that lives in the worker's own process; elsewhere `engine` says where engines run.
    `model` is what the tokenizer is read from, `model_id` what `renderer = "auto"` looks for. `plugins_seen` is the
    snapshot of the run's plugins: a worker with others refuses to start. With a `teacher`, the rollouts of training are
    its; evaluations stay the model's own.
    """

    model: str
    model_id: str | None = None
    served_model: str | None = None
    renderer: str = "auto"
    renderer_options: Options = Field(default_factory=dict)
    client_mode: str
    client_mode_options: Options = Field(default_factory=dict)
    engine: EngineSection = Field(default_factory=EngineSection)
    engine_key: str | None = None
    gateway: GatewaySection = Field(default_factory=GatewaySection)
    environments: list[EnvironmentSection]
    evaluations: list[EvaluationSection] = Field(default_factory=list)
    sampling: SamplingSection = Field(default_factory=SamplingSection)
    seed: int = 0
    max_turns: PositiveInt | None = None
    continue_truncated: bool = False
    environment_seconds: float | None = None
    rollout_seconds: float | None = None
    teacher: TeacherRolloutsSection | None = None
    images: ImagesSection = Field(default_factory=ImagesSection)
    plugins: PluginsConfig = Field(default_factory=PluginsConfig)
    plugins_seen: dict[str, Any] | None = None


def make_schedule(environments: Sequence[EnvironmentSection], seed: int) -> Schedule:
    """Return the schedule of training: which task each group works on."""
    entries = [
        WeightedEnvironment(create("environment", entry.name, **entry.options), entry.weight) for entry in environments
    ]
    return Schedule(entries, seed)


def make_evaluation_schedule(section: EvaluationSection, seed: int) -> Schedule:
    """Return the schedule of an evaluation: example n is group n, and its seeds are never those of training."""
    environment = create("environment", section.environment, **section.options)
    return Schedule([WeightedEnvironment(environment)], derived_seed(seed, f"evaluation/{section.name}"))


def evaluation_sampling(section: EvaluationSection, training: SamplingParams) -> SamplingParams:
    """Return how an evaluation samples: as training does, but for what the section overrides."""
    return section.sampling.over(training)
