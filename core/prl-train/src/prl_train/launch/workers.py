"""Where a run's rollouts are played: the executor, its workers' settings, filters and evaluations."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import cast

from prl.contracts import AgentEnvironment, EngineClient, RolloutExecutor, RolloutFilter, WorkerSpec
from prl.plugin import ClientModeEntry, ExecutorEntry, create, get_registry, take_snapshot
from prl.types import ConfigError, about_key
from prl_train.chosen import check_chosen, find_chosen
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
    record = cast(ExecutorEntry, find_chosen("executor", config.executor, "executor"))
    check_chosen(record, config.executor_options, "executor_options")
    if config.engine.is_embedded and not record.in_process:
        raise ConfigError(
            f"executor {config.executor!r} plays rollouts in other processes, which cannot reach an embedded engine",
            where="executor, and [engine]",
            next_step='serve the engine (`prl serve`) and set engine.url, or use executor = "local"',
            keys=[("executor",)],
        )
    for number, one in enumerate(config.filters):
        named = find_chosen("filter", one.name, "filters", number, "name")
        check_chosen(named, one.options, "filters", number, "options")
    make_filters(config.filters)
    schedules = [schedule, *(_held_out(config, number) for number in range(len(config.evaluations)))]
    _check_unique([section.name for section in config.evaluations])
    _check_agents(config, schedules)


def make_filters(sections: Sequence[FilterSection], first: Mapping[str, RolloutFilter] | None = None) -> FilterSet:
    """Create the filters, after the run's own (`first`); a second one of a name is labelled `name-2`."""
    filters: dict[str, RolloutFilter] = dict(first or {})
    for index, section in enumerate(sections):
        count = sum(other.name == section.name for other in sections[:index]) + 1
        label = section.name if count == 1 else f"{section.name}-{count}"
        with about_key("filters", index, "options"):
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
            keep_rollouts=section.keep_rollouts,
        )
        for section in parts.config.evaluations
    ]


def _held_out(config: RLConfig, number: int) -> Schedule:
    """Check an entry of `[[evaluations]]` (from 0), and return its schedule."""
    entry, section = config.evaluations[number], ("evaluations", number, "options")
    check_chosen(find_chosen("environment", entry.environment, *section[:2], "environment"), entry.options, *section)
    with about_key(*section):
        return make_evaluation_schedule(entry, config.run.seed)


def _check_unique(names: Sequence[str]) -> None:
    twice = sorted({name for name in names if list(names).count(name) > 1})
    if twice:
        raise ConfigError(
            f"two evaluations are named {twice[0]!r}",
            where="[[evaluations]] name",
            next_step="give each a name of its own: their metrics are eval/<name>/...",
            keys=[("evaluations", number, "name") for number, name in enumerate(names) if name == twice[0]],
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
            keys=[("client_mode",)],
        )
