"""The processes of a run: the trainer, the orchestrator, and both in one with an embedded engine."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from prl.contracts import EngineClient
from prl.plugin import ClientModeEntry, create, get_registry
from prl.types import PrlError
from prl_train.config import RLConfig
from prl_train.orchestrator import Orchestrator, RolloutPlayer
from prl_train.orchestrator.groups import GroupRunner
from prl_train.orchestrator.loop import Outcome
from prl_train.orchestrator.sinks import SinkSet
from prl_train.orchestrator.weights import WeightFollower
from prl_train.report import write_report
from prl_train.run import RunFolder
from prl_train.run.phase import PhaseLog
from prl_train.sft import warm_up
from prl_train.trainer import Trainer

from .demonstrations import supervised_samples
from .engines import run_engine, served_model
from .open_run import attach_run, begin_run, use_plugins
from .parts import RunParts, check_names, client_mode, load_parts, make_sinks, sampling_params
from .train_loop import TrainLoop


def run_everything(config: RLConfig) -> Outcome:
    """Run orchestrator, trainer and an embedded engine (or those that [engine] points to) in this process."""
    use_plugins(config)
    schedule = check_names(config)
    folder = begin_run(config)
    with _told(folder, "orchestrator"), _told(folder, "trainer"):
        parts = load_parts(config, folder, schedule)
        outcome = asyncio.run(_everything(parts))
        _report(parts)
    return outcome


def run_trainer(config: RLConfig) -> int:
    """Run the trainer alone; return the number of steps trained."""
    use_plugins(config)
    schedule = check_names(config)
    folder = attach_run(config)
    with _told(folder, "trainer"):
        return make_train_loop(load_parts(config, folder, schedule)).run(threading.Event())


def run_orchestrator(config: RLConfig) -> Outcome:
    """Run the orchestrator alone, against the engines that [engine] points to."""
    use_plugins(config)
    schedule = check_names(config)
    folder = attach_run(config)
    with _told(folder, "orchestrator"):
        parts = load_parts(config, folder, schedule)
        outcome = asyncio.run(_orchestrate_alone(parts))
        _report(parts)
    return outcome


def _report(parts: RunParts) -> None:
    if parts.config.run.report:
        write_report(parts.folder, parts.tokenizer, rollouts=parts.config.orchestrator.report_rollouts)


@contextmanager
def _told(folder: RunFolder, part: str) -> Iterator[None]:
    """Keep the part's status file true: running, then done, stopped or failed."""
    folder.status.set(part, "running")
    state, error = "stopped", ""
    try:
        yield
        state = "done"
    except PrlError as failure:
        state, error = "failed", failure.what
        raise
    finally:
        folder.status.set(part, state, error)


async def _everything(parts: RunParts) -> Outcome:
    """Train in a thread beside the orchestrator; the first to fail ends the other, and its error is the run's."""
    # The engine comes up before the trainer begins: transformers cannot load two models at once in one process.
    async with run_engine(parts.config.engine, parts.model) as engine:
        stop = threading.Event()
        training = asyncio.create_task(asyncio.to_thread(make_train_loop(parts).run, stop))
        orchestrating = asyncio.create_task(_orchestrate(parts, engine))
        try:
            await asyncio.wait({training, orchestrating}, return_when=asyncio.FIRST_EXCEPTION)
            if training.done() and training.exception() is not None:
                training.result()
            outcome = await orchestrating
            stop.set()  # the orchestrator is done when the last batch was trained; what is left is the last checkpoint
            await training
            return outcome
        finally:
            stop.set()
            orchestrating.cancel()
            await asyncio.gather(training, orchestrating, return_exceptions=True)


async def _orchestrate_alone(parts: RunParts) -> Outcome:
    async with run_engine(parts.config.engine, parts.model) as engine:
        return await _orchestrate(parts, engine)


async def _orchestrate(parts: RunParts, engine: EngineClient) -> Outcome:
    config, folder = parts.config, parts.folder
    follower = WeightFollower(engine, folder, wait_seconds=config.run.wait_seconds)
    sinks = SinkSet(make_sinks(config))
    orchestrator = Orchestrator(
        config.orchestrator,
        runner=_group_runner(parts, await _player(parts, engine), follower),
        folder=folder,
        follower=follower,
        sinks=sinks,
        renderer=parts.renderer,
    )
    sinks.open(folder.root, config.model_dump(mode="json"))
    try:
        return await orchestrator.run()
    finally:
        sinks.close()


async def _player(parts: RunParts, engine: EngineClient) -> RolloutPlayer:
    config = parts.config
    name = client_mode(config)
    renderer = parts.renderer if get_registry().find(ClientModeEntry, name).needs_renderer else None
    mode = create("client_mode", name, engine, renderer, **config.client_mode_options)
    return RolloutPlayer(
        mode,
        model=await served_model(engine),
        sampling=sampling_params(config, parts.renderer),
        max_turns=config.orchestrator.max_turns,
        continue_truncated=config.orchestrator.truncated_turn == "continue",
    )


def _group_runner(parts: RunParts, player: RolloutPlayer, follower: WeightFollower) -> GroupRunner:
    settings = parts.config.orchestrator
    return GroupRunner(
        player,
        parts.schedule,
        group_size=settings.group_size,
        max_concurrency=settings.max_concurrency,
        advantage_std=settings.advantage_std,
        current_version=lambda: follower.version,
        decode=parts.tokenizer.decode,
    )


def make_train_loop(parts: RunParts) -> TrainLoop:
    """Return the trainer's loop of a run."""
    config = parts.config
    settings = config.trainer.model_copy(update={"model": parts.model})
    return TrainLoop(
        Trainer(settings),
        parts.folder,
        steps=config.orchestrator.steps,
        max_async_level=config.orchestrator.max_async_level,
        wait_seconds=config.run.wait_seconds,
        warm_up=_warm_up(parts),
    )


def _warm_up(parts: RunParts) -> Callable[[Trainer], None] | None:
    """Return the supervised phase before the first batch, None where the configuration has none."""
    section = parts.config.warmup
    if section.steps == 0:
        return None

    def run(trainer: Trainer) -> None:
        with PhaseLog("warm-up", section.steps, parts.folder.warmup) as log:
            samples = supervised_samples(parts.schedule, parts.renderer, parts.tokenizer)
            warm_up(trainer, samples, section.steps, section.batch_size, lr=section.lr, on_step=log.step)

    return run
