"""Where a run's rollouts are played: the executor, its workers' settings, filters and evaluations."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from prl.contracts import AgentEnvironment, EngineClient, RolloutExecutor, RolloutFilter, WorkerSpec
from prl.plugin import ClientModeEntry, ExecutorEntry, build_options, create, get_registry, take_snapshot
from prl.types import ConfigError, PluginError
from prl_train.config import FilterSection, RLConfig
from prl_train.executor import WorkerSettings
from prl_train.executor.settings import make_evaluation_schedule
from prl_train.executor.shared import share_engine
from prl_train.orchestrator.evaluation import EvaluationPlan
from prl_train.orchestrator.filtering import FilterSet
from prl_train.orchestrator.groups import GroupRunner
from prl_train.orchestrator.schedule import Schedule

from .parts import RunParts, client_mode
from .teachers import Finishing, compares_rollouts, teacher_filters

WORKER = "prl_train.executor.worker:create_worker"


def check_workers(config: RLConfig, schedule: Schedule) -> None:
    """Check executor, filters and evaluations, before anything heavy begins; raise `ConfigError` or `PluginError`."""
    record = get_registry().find(ExecutorEntry, config.executor)
    build_options(record, config.executor_options, where="[executor_options]")
    if config.engine.is_embedded and not record.in_process:
        raise ConfigError(
            f"executor {config.executor!r} plays rollouts in other processes, which cannot reach an embedded engine",
            where="executor, and [engine]",
            next_step='serve the engine (`prl serve`) and set engine.url, or use executor = "local"',
        )
    _check_options("filter", "[[filters]]", [(one.name, one.options) for one in config.filters])
    make_filters(config.filters)
    held_out = [(one.environment, one.options) for one in config.evaluations]
    _check_options("environment", "[[evaluations]]", held_out)
    schedules = [schedule, *(make_evaluation_schedule(section, config.run.seed) for section in config.evaluations)]
    _check_unique([section.name for section in config.evaluations])
    _check_agents(config, schedules)


def make_filters(sections: Sequence[FilterSection], first: Mapping[str, RolloutFilter] | None = None) -> FilterSet:
    """Create the filters, after the run's own (`first`); a second one of a name is labelled `name-2`."""
    filters: dict[str, RolloutFilter] = dict(first or {})
    for index, section in enumerate(sections):
        count = sum(other.name == section.name for other in sections[:index]) + 1
        label = section.name if count == 1 else f"{section.name}-{count}"
        filters[label] = create("filter", section.name, **section.options)
    return FilterSet(filters)


@asynccontextmanager
async def run_executor(parts: RunParts, engine: EngineClient) -> AsyncIterator[RolloutExecutor]:
    """Yield the run's executor with its workers up; workers of this process use `engine` itself."""
    config = parts.config
    executor: RolloutExecutor = create("executor", config.executor, **config.executor_options)
    with share_engine(engine) as key:
        try:
            await executor.start(worker_spec(parts, engine_key=key))
            yield executor
        finally:
            await executor.close()


def worker_spec(parts: RunParts, *, engine_key: str | None = None) -> WorkerSpec:
    """Return how a worker of the run is made, as JSON data."""
    config = parts.config
    settings = WorkerSettings(
        model=parts.model,
        model_id=None if config.model.scratch is not None else parts.model,
        renderer=config.renderer,
        renderer_options=config.renderer_options,
        client_mode=client_mode(config),
        client_mode_options=config.client_mode_options,
        engine=config.engine,
        engine_key=engine_key,
        gateway=config.gateway,
        environments=config.environments,
        evaluations=config.evaluations,
        sampling=config.sampling,
        seed=config.run.seed,
        max_turns=config.orchestrator.max_turns,
        continue_truncated=config.orchestrator.truncated_turn == "continue",
        environment_seconds=config.orchestrator.environment_seconds,
        rollout_seconds=config.orchestrator.rollout_seconds,
        teacher=config.teacher.rollouts,
        images=config.images,
        plugins=config.plugins,
        plugins_seen=take_snapshot(get_registry()).to_dict(),
    )
    return WorkerSpec(target=WORKER, settings=settings.model_dump(mode="json"))


def group_runner(
    parts: RunParts, executor: RolloutExecutor, current_version: Callable[[], int], finishing: Finishing
) -> GroupRunner:
    """Return what plays the groups of training."""
    settings = parts.config.orchestrator
    return GroupRunner(
        executor,
        parts.schedule,
        group_size=settings.group_size,
        max_concurrency=settings.max_concurrency,
        advantage_std=settings.advantage_std,
        current_version=current_version,
        decode=parts.tokenizer.decode,
        filters=make_filters(parts.config.filters, teacher_filters(parts.config)),
        finishers=finishing.finishers,
        expect=finishing.expect,
        compares=compares_rollouts(parts.config),
    )


def evaluation_plans(
    parts: RunParts, executor: RolloutExecutor, current_version: Callable[[], int]
) -> list[EvaluationPlan]:
    """Return the run's evaluations, each with a runner and a share of concurrency of its own."""
    return [
        EvaluationPlan(
            name=section.name,
            runner=GroupRunner(
                executor,
                make_evaluation_schedule(section, parts.config.run.seed),
                group_size=section.samples_per_example,
                max_concurrency=section.max_concurrency,
                advantage_std=False,
                current_version=current_version,
                decode=parts.tokenizer.decode,
                evaluation=section.name,
            ),
            examples=section.examples,
            every=section.every,
            at_start=section.at_start,
            at_end=section.at_end,
            solved_reward=section.solved_reward,
        )
        for section in parts.config.evaluations
    ]


def _check_options(kind: str, section: str, chosen: Sequence[tuple[str, dict[str, Any]]]) -> None:
    """Find each name and check its options; an error says which entry of the section it is about."""
    for number, (name, options) in enumerate(chosen, start=1):
        where = f"{section} number {number}"
        try:
            record = get_registry().find(kind, name)
        except PluginError as error:
            error.where = error.where or where
            raise
        build_options(record, options, where=f"{where}, options")


def _check_unique(names: Sequence[str]) -> None:
    twice = sorted({name for name in names if list(names).count(name) > 1})
    if twice:
        raise ConfigError(
            f"two evaluations are named {twice[0]!r}",
            where="[[evaluations]] name",
            next_step="give each a name of its own: their metrics are eval/<name>/...",
        )


def _check_agents(config: RLConfig, schedules: Sequence[Schedule]) -> None:
    mode = client_mode(config)
    if get_registry().find(ClientModeEntry, mode).needs_renderer:
        return
    entries = [entry.environment for schedule in schedules for entry in schedule.environments]
    agents = [environment.name for environment in entries if isinstance(environment, AgentEnvironment)]
    if agents:
        raise ConfigError(
            f"environment {agents[0]!r} runs an agent behind the gateway, which renders; client mode {mode!r} does not",
            where="client_mode",
            next_step='set client_mode = "renderer"',
        )
