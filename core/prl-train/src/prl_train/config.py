"""The configuration of a reinforcement-learning run: one file for every process of it.

Sections whose names end in `options` belong to plugins; they are checked in a second stage by the plugin's own model.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, model_validator

from prl.client.images import ImagePolicy
from prl.client.routing import refuse_misplaced
from prl.config import PluginsConfig
from prl.types import SamplingParams
from prl_train.teacher.config import TeacherSection
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

    @model_validator(mode="before")
    @classmethod
    def _nothing_of_the_renderer(cls, values: Any) -> Any:
        refuse_misplaced(values if isinstance(values, dict) else {})
        return values

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
    ask_again_seconds: Annotated[float, Field(gt=0)] = Field(
        default=60.0,
        description="after how long without an answer a generate request is sent again beside the one that waits, "
        "under the same key: the engine joins the two",
    )
    health_seconds: Annotated[float, Field(gt=0)] = Field(
        default=5.0, description="how often an engine is asked for its health; it has twice as long to answer"
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


class GatewaySection(Section):
    """Where agents find their model: the gateway of each process that plays rollouts."""

    host: str = Field(default="127.0.0.1", description="address to listen on; 0.0.0.0 for agents in containers")
    port: Annotated[int, Field(ge=0, le=65535)] = Field(default=0, description="0: a free one")
    told_host: str | None = Field(
        default=None, description="what agents are told instead of the host, where they see it under another name"
    )


class FilterSection(Section):
    """One filter of finished rollouts; filters run in the order in which they stand."""

    name: str
    options: Options = Field(default_factory=dict)


class SamplingSection(Section):
    """How completions are drawn. `max_tokens` absent means what is left of the context."""

    max_tokens: PositiveInt | None = None
    min_tokens: Annotated[int, Field(ge=0)] = 0
    temperature: Annotated[float, Field(gt=0)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=-1)] = -1


class SamplingOverrides(Section):
    """What an evaluation samples otherwise than training does."""

    max_tokens: PositiveInt | None = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    temperature: Annotated[float, Field(gt=0)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None

    def over(self, base: SamplingParams) -> SamplingParams:
        """Return `base` with what is set here."""
        return replace(base, **self.model_dump(exclude_none=True))


class EvaluationSection(Section):
    """An evaluation beside training: examples 0 to `examples` - 1 of an environment, never trained on."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    environment: str
    options: Options = Field(default_factory=dict)
    every: PositiveInt = Field(default=10, description="steps between two evaluations")
    examples: PositiveInt = 32
    samples_per_example: PositiveInt = Field(default=1, description="the k of avg@k and pass@k")
    at_start: bool = Field(default=True, description="also evaluate the weights that training begins with")
    at_end: bool = Field(default=True, description="also evaluate the last weights; the run waits for it")
    max_concurrency: PositiveInt = Field(default=64, description="its rollouts in flight, besides those of training")
    solved_reward: float = Field(default=1.0, description="the reward from which pass@k counts a rollout as solved")
    keep_rollouts: PositiveInt | None = Field(
        default=None, description="its last times whose rollouts stay in the run folder; absent: all; figures stay"
    )
    sampling: SamplingOverrides = Field(default_factory=SamplingOverrides)


class OrchestratorSection(Section):
    """Groups, batches and how far rollouts may lag behind the weights."""

    steps: PositiveInt = 40
    group_size: PositiveInt = Field(
        default=8, description="rollouts of one task, compared with each other; 1 only where no loss reads advantages"
    )
    groups_per_step: PositiveInt = 4
    max_async_level: Annotated[int, Field(ge=0)] = Field(
        default=1, description="batch n is sampled by weights of version n - max_async_level or newer; 0: synchronous"
    )
    max_off_policy_steps: Annotated[int, Field(ge=0)] | None = Field(
        default=None,
        description="groups begun more than this many weight versions ago are begun again, in flight or finished and "
        "waiting; absent: they are finished, and max_async_level decides",
    )
    max_concurrency: PositiveInt = Field(default=512, description="rollouts in flight at once")
    max_turns: PositiveInt | None = Field(default=None, description="fewer turns than the environment allows")
    truncated_turn: Literal["end", "continue"] = Field(
        default="end", description="what follows a turn that ran out of tokens: the rollout ends, or goes on"
    )
    advantage_std: bool = Field(default=False, description="divide advantages by the group's standard deviation")
    dead_after: PositiveInt = Field(default=8, description="batches in a row without a signal that stop the run")
    max_failed_groups: PositiveInt = Field(default=3, description="wholly failed groups in a row that stop the run")
    max_filtered_groups: PositiveInt = Field(
        default=32, description="groups in a row that the filters dropped whole, at which the run stops"
    )
    environment_seconds: Annotated[float, Field(gt=0)] = Field(
        default=600.0, description="how long an environment may take to answer one turn; an agent has rollout_seconds"
    )
    rollout_seconds: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="how long one rollout may take, an agent's included; absent: no limit"
    )
    keep_rollouts: PositiveInt | None = Field(
        default=None, description="steps whose rollouts stay in the run folder; absent: all"
    )
    report_rollouts: Annotated[int, Field(ge=0)] = Field(default=6, description="rollouts shown in the report")


class WarmupSection(Section):
    """A supervised warm-up on the environments' demonstrations, before the first batch."""

    steps: Annotated[int, Field(ge=0)] = 0
    batch_size: PositiveInt = 16
    lr: Annotated[float, Field(gt=0)] | None = Field(default=None, description="None: the trainer's own rate")


class ImagesSection(Section):
    """Images of a vision-language model: where they may come from, and what is kept of them."""

    directory: Path | None = Field(default=None, description="the one folder that images named by files are read from")
    allow_urls: bool = Field(default=False, description="whether images named by web addresses are fetched")
    max_bytes: PositiveInt = Field(default=20_000_000, description="largest image, as a file")
    cache_megabytes: PositiveInt = Field(default=2048, description="prepared images kept, in 10^6 bytes")
    threads: PositiveInt = Field(default=2, description="threads that prepare images")

    def policy(self) -> ImagePolicy:
        """Return where images may come from."""
        return ImagePolicy(self.directory, self.allow_urls, self.max_bytes)


class RLConfig(Section):
    """Everything a reinforcement-learning run needs."""

    renderer: str = "auto"
    renderer_options: Options = Field(default_factory=dict)
    client_mode: str | None = None
    client_mode_options: Options = Field(default_factory=dict)
    use_renderer: bool | None = None
    use_token_client: bool | None = None
    sinks: list[str] = Field(default_factory=lambda: ["console"])
    sink_options: dict[str, Options] = Field(default_factory=dict, description="options of a sink, by its name")
    run: RunSection = Field(default_factory=RunSection)
    model: ModelSection
    engine: EngineSection = Field(default_factory=EngineSection)
    environments: list[EnvironmentSection] = Field(min_length=1)
    filters: list[FilterSection] = Field(default_factory=list)
    evaluations: list[EvaluationSection] = Field(default_factory=list)
    executor: str = Field(default="local", description="where rollouts are played")
    executor_options: Options = Field(default_factory=dict)
    gateway: GatewaySection = Field(default_factory=GatewaySection)
    sampling: SamplingSection = Field(default_factory=SamplingSection)
    teacher: TeacherSection = Field(default_factory=TeacherSection)
    images: ImagesSection = Field(default_factory=ImagesSection)
    orchestrator: OrchestratorSection = Field(default_factory=OrchestratorSection)
    trainer: TrainerConfig = Field(default_factory=TrainerConfig)
    warmup: WarmupSection = Field(default_factory=WarmupSection)
    plugins: PluginsConfig = Field(default_factory=PluginsConfig)
