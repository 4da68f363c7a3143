"""The configuration of a reinforcement-learning run: one file for every process of it.

Sections whose names end in `options` belong to plugins; they are checked in a second stage by the plugin's own model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, model_validator

from prl.config import PluginsConfig
from prl_train.trainer.config import TrainerConfig

Options = dict[str, Any]


class Section(BaseModel):
    """A part of the configuration; an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", validate_default=True)


class RunSection(Section):
    """Where the run keeps its files, and what happens when files of an earlier run are there."""

    directory: Path = Path("runs/rl")
    seed: int = 0
    existing: Literal["error", "resume", "overwrite"] = Field(
        default="error", description="what to do when `directory` already holds a run"
    )
    wait_seconds: Annotated[float, Field(gt=0)] = Field(
        default=1800.0, description="how long one process waits for another before it gives up"
    )
    report: bool = Field(default=True, description="write report.html at the end")


class ScratchSection(Section):
    """A tiny Qwen3-architecture model with a small tokenizer trained on the environments' own renderings."""

    vocab_size: Annotated[int, Field(ge=300)] = 608
    tokenizer_examples: PositiveInt = Field(default=512, description="demonstrations the tokenizer is trained on")
    hidden_size: PositiveInt = 96
    layers: PositiveInt = 3
    heads: PositiveInt = 3
    kv_heads: PositiveInt = 1
    intermediate: PositiveInt = 256
    initializer_range: Annotated[float, Field(gt=0)] = 0.08
    max_position_embeddings: PositiveInt = 256


class ModelSection(Section):
    """The model: a directory or hub id, or `[model.scratch]`."""

    path: str | None = None
    scratch: ScratchSection | None = None

    @model_validator(mode="after")
    def _one_source(self) -> ModelSection:
        if (self.path is None) == (self.scratch is None):
            raise ValueError("give exactly one of `model.path` (a directory or hub id) and a `[model.scratch]` table")
        return self


class EngineSection(Section):
    """The engine: `kind` names a plugin that runs inside `prl rl`; `url`, `base_urls` or `dns` reach running ones."""

    kind: str = "local"
    url: str | None = Field(default=None, description="http address of a running engine, instead of an embedded one")
    base_urls: list[str] = Field(default_factory=list, description="addresses of several engines of the same model")
    dns: str | None = Field(
        default=None, description='"host:port" of engines that come and go: each address of the name is one'
    )
    dns_seconds: Annotated[float, Field(gt=0)] = Field(default=10.0, description="how often `dns` is looked up")
    route: str = Field(
        default="/v1/generate", description='"/inference/v1/generate" reaches a vLLM without prl\'s plugin'
    )
    data_parallel_ranks: PositiveInt = Field(default=1, description="ranks of each engine, addressed one by one")
    max_concurrency: PositiveInt | None = Field(
        default=None, description="requests at once on one engine (on one rank); absent: no limit"
    )
    request_seconds: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="how long one try of a request may take; absent: as long as the engine takes"
    )
    start_seconds: Annotated[float, Field(ge=0)] = Field(
        default=120.0, description="how long to wait for the first running engine"
    )
    absent_seconds: Annotated[float, Field(gt=0)] = Field(
        default=300.0, description="how long requests wait while no engine is ready"
    )
    options: Options = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_place(self) -> EngineSection:
        given = [name for name in ("url", "base_urls", "dns") if getattr(self, name)]
        if len(given) > 1:
            raise ValueError(f"give one of engine.url, engine.base_urls and engine.dns, not {' and '.join(given)}")
        return self

    @property
    def is_embedded(self) -> bool:
        """Whether the engine lives and ends with the run."""
        return not (self.url or self.base_urls or self.dns)


class EnvironmentSection(Section):
    """One environment and its share of the groups."""

    name: str
    weight: Annotated[float, Field(gt=0)] = 1.0
    options: Options = Field(default_factory=dict)


class SamplingSection(Section):
    """How completions are drawn. `max_tokens` absent means what is left of the context."""

    max_tokens: PositiveInt | None = None
    min_tokens: Annotated[int, Field(ge=0)] = 0
    temperature: Annotated[float, Field(gt=0)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: int = -1


class OrchestratorSection(Section):
    """Groups, batches and how far rollouts may lag behind the weights."""

    steps: PositiveInt = 40
    group_size: Annotated[int, Field(ge=2)] = 8
    groups_per_step: PositiveInt = 4
    max_async_level: Annotated[int, Field(ge=0)] = Field(
        default=1, description="batch n is sampled by weights of version n - max_async_level or newer; 0: synchronous"
    )
    max_concurrency: PositiveInt = Field(default=512, description="rollouts in flight at once")
    max_turns: PositiveInt | None = Field(default=None, description="fewer turns than the environment allows")
    truncated_turn: Literal["end", "continue"] = Field(
        default="end", description="what follows a turn that ran out of tokens: the rollout ends, or goes on"
    )
    advantage_std: bool = Field(default=False, description="divide advantages by the group's standard deviation")
    dead_after: PositiveInt = Field(default=8, description="batches in a row without a signal that stop the run")
    max_failed_groups: PositiveInt = Field(default=3, description="wholly failed groups in a row that stop the run")
    report_rollouts: Annotated[int, Field(ge=0)] = Field(default=6, description="rollouts shown in the report")


class WarmupSection(Section):
    """A supervised warm-up on the environments' demonstrations, before the first batch."""

    steps: Annotated[int, Field(ge=0)] = 0
    batch_size: PositiveInt = 16
    lr: Annotated[float, Field(gt=0)] | None = Field(default=None, description="None: the trainer's own rate")


class RLConfig(Section):
    """Everything a reinforcement-learning run needs."""

    renderer: str = "auto"
    renderer_options: Options = Field(default_factory=dict)
    client_mode: str | None = None
    client_mode_options: Options = Field(default_factory=dict)
    use_renderer: bool | None = None
    use_token_client: bool | None = None
    sinks: list[str] = Field(default_factory=lambda: ["console"])
    run: RunSection = Field(default_factory=RunSection)
    model: ModelSection
    engine: EngineSection = Field(default_factory=EngineSection)
    environments: list[EnvironmentSection] = Field(min_length=1)
    sampling: SamplingSection = Field(default_factory=SamplingSection)
    orchestrator: OrchestratorSection = Field(default_factory=OrchestratorSection)
    trainer: TrainerConfig = Field(default_factory=TrainerConfig)
    warmup: WarmupSection = Field(default_factory=WarmupSection)
    plugins: PluginsConfig = Field(default_factory=PluginsConfig)
