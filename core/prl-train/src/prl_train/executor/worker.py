"""The worker that plays rollouts: made anew in any process from settings, the same everywhere."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from prl import create_renderer, load_tokenizer
from prl.client import EnginePool
from prl.client.images import inline_images
from prl.contracts import ClientMode, ClosableEnvironment, EngineClient, Renderer, RolloutJob
from prl.plugin import ClientModeEntry, compare_snapshots, configure_registry, create, get_registry, take_snapshot
from prl.plugin.snapshot import Snapshot
from prl.tokenizer import Tokenizer
from prl.types import ConfigError, Rollout, SamplingParams
from prl_train.launch.engines import make_pool, served_model, until_up
from prl_train.orchestrator.play import RolloutPlayer
from prl_train.orchestrator.schedule import Schedule
from prl_train.teacher.client import TeacherClient
from prl_train.teacher.rollouts import TeacherMode

from .agents import AgentPlayer, GatewayHost
from .settings import WorkerSettings, evaluation_sampling, make_evaluation_schedule, make_schedule
from .shared import shared_engine
from .stages import Stage, StagePlayer


class Worker:
    """Holds one process's engine client, renderer and gateway, and plays what it is given."""

    def __init__(
        self,
        settings: WorkerSettings,
        renderer: Renderer,
        tokenizer: Tokenizer,
        *,
        engine: EngineClient,
        pool: EnginePool | None,
    ) -> None:
        self.settings = settings
        self.renderer = renderer
        self.tokenizer = tokenizer
        self.engine = engine
        self._pool = pool
        self._host: GatewayHost | None = None
        self._teacher: TeacherClient | None = None
        self._player = StagePlayer({})
        self._schedules: dict[str | None, Schedule] = {
            None: make_schedule(settings.environments, settings.seed),
            **{section.name: make_evaluation_schedule(section, settings.seed) for section in settings.evaluations},
        }

    async def start(self) -> None:
        """Wait for the engine and learn what its model is called."""
        if self._pool is not None:
            await until_up(self._pool, self.settings.engine)
        model = self.settings.served_model or await served_model(self.engine)
        renders = get_registry().find(ClientModeEntry, self.settings.client_mode).needs_renderer
        self._host = GatewayHost(self.engine, self.renderer, model, self.settings.gateway) if renders else None
        mode: ClientMode = create(
            "client_mode",
            self.settings.client_mode,
            self.engine,
            self.renderer if renders else None,
            **self.settings.client_mode_options,
        )
        self._player = StagePlayer(
            self._stages(mode, self._training_mode(mode), model), seconds=self.settings.rollout_seconds
        )

    async def play(self, job: RolloutJob) -> Rollout:
        """Play one rollout to its end. What breaks is in the rollout's `error`, with the turns so far."""
        return await self._player.play(job)

    async def close(self) -> None:
        """End the environments, the gateway, and the connections where they are the worker's own.

        All are ended, also where one raises; its error is raised after that.
        """
        async with AsyncExitStack() as ends:  # from the last to the first
            if self._pool is not None:
                ends.push_async_callback(self._pool.close)
            if self._teacher is not None:
                ends.push_async_callback(self._teacher.close)
            if self._host is not None:
                ends.push_async_callback(self._host.close)
            for schedule in self._schedules.values():
                for entry in schedule.environments:
                    if isinstance(entry.environment, ClosableEnvironment):
                        ends.push_async_callback(entry.environment.aclose)

    def _training_mode(self, mode: ClientMode) -> ClientMode:
        """Return how the rollouts of training are played: by the teacher where there is one."""
        section = self.settings.teacher
        if section is None:
            return mode
        self._teacher = TeacherClient(section)
        return TeacherMode(self._teacher, self.renderer, self.tokenizer, section)

    def _stages(self, mode: ClientMode, training_mode: ClientMode, model: str) -> dict[str | None, Stage]:
        settings = self.settings
        training = SamplingParams(
            **settings.sampling.model_dump(), stop_token_ids=tuple(self.renderer.get_stop_token_ids())
        )
        samplings: dict[str | None, SamplingParams] = {
            None: training,
            **{section.name: evaluation_sampling(section, training) for section in settings.evaluations},
        }
        return {
            name: self._stage(name, training_mode if name is None else mode, model, sampling)
            for name, sampling in samplings.items()
        }

    def _stage(self, name: str | None, mode: ClientMode, model: str, sampling: SamplingParams) -> Stage:
        player = RolloutPlayer(
            mode,
            model=model,
            sampling=sampling,
            max_turns=self.settings.max_turns,
            continue_truncated=self.settings.continue_truncated,
            environment_seconds=self.settings.environment_seconds,
            prepare=partial(inline_images, policy=self.settings.images.policy()),
        )
        agents = None if self._host is None else AgentPlayer(self._host, sampling)
        return Stage(self._schedules[name], player, agents)


def create_worker(settings: dict[str, Any]) -> Worker:
    """Make a worker from JSON settings: what a `WorkerSpec` of this package names as its target.

    Raises `PluginError` where this process's plugins differ from the run's, and `ConfigError` where the settings point
    to an engine that lives in another process.
    """
    checked = WorkerSettings.model_validate(settings)
    _agree_on_plugins(checked)
    engine, pool = _reach(checked)
    tokenizer = load_tokenizer(checked.model)
    renderer = create_renderer(tokenizer, checked.renderer, model=checked.model_id, **checked.renderer_options)
    return Worker(checked, renderer, tokenizer, engine=engine, pool=pool)


def _agree_on_plugins(settings: WorkerSettings) -> None:
    """Have this process load the plugins that the run uses, and refuse to play with others."""
    if settings.plugins_seen is None:
        return
    seen = Snapshot(tuple(settings.plugins_seen["plugins"]), dict(settings.plugins_seen["prefer"]))
    if take_snapshot(get_registry()).digest == seen.digest:
        return
    configure_registry(settings.plugins.settings())
    compare_snapshots(seen, take_snapshot(get_registry()), where="a rollout worker, on its machine")


def _reach(settings: WorkerSettings) -> tuple[EngineClient, EnginePool | None]:
    """Return the engine client of the key where it lives in this process, else a pool of the worker's own, twice."""
    shared = None if settings.engine_key is None else shared_engine(settings.engine_key)
    if shared is not None:
        return shared, None
    if settings.engine.is_embedded:
        raise ConfigError(
            "the run's engine lives in the orchestrator's process, which this rollout worker cannot reach",
            where="[engine]",
            next_step='serve the engine (`prl serve`) and set engine.url, or use executor = "local"',
        )
    pool = make_pool(settings.engine)
    return pool, pool
