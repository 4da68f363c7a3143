"""The processes of a run: the trainer, the orchestrator, and both in one with an embedded engine."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

from prl.contracts import EngineClient
from prl.types import ConfigError, PrlError
from prl_train.config import RLConfig
from prl_train.distributed import Place, find_place, joined_world
from prl_train.orchestrator import Orchestrator
from prl_train.orchestrator.loop import Outcome
from prl_train.orchestrator.sinks import SinkSet
from prl_train.orchestrator.weights import WeightFollower
from prl_train.report import write_report
from prl_train.run import RunFolder
from prl_train.run.phase import PhaseLog
from prl_train.sft import warm_up
from prl_train.trainer import Trainer
from prl_train.transfer.board import TransferBoard
from prl_train.transfer.broadcast import Broadcast

from .beside import train_beside
from .demonstrations import supervised_samples
from .engines import run_engine
from .open_run import agree, attach_run, begin_run, tell_changes, use_plugins
from .parts import RunParts, check_names, load_parts, make_sinks, takes_images
from .teachers import check_secrets, run_finishers
from .train_loop import TrainLoop
from .trainers import LocalTrainers
from .workers import check_workers, evaluation_plans, group_runner, run_executor


def run_everything(config: RLConfig) -> Outcome:
    """Run orchestrator, trainer and an embedded engine (or those that [engine] points to) from this process."""
    use_plugins(config)
    _check_alone(find_place())
    schedule = check_names(config)
    check_workers(config, schedule)
    check_secrets(config)
    folder = begin_run(config)
    with _told(folder, config, "orchestrator"), _told(folder, config, "trainer"):
        tell_changes(folder, config)
        parts = load_parts(config, folder, schedule)
        outcome = asyncio.run(_everything(parts))
        _report(parts)
    return outcome


def _check_alone(place: Place) -> None:
    if place.size > 1:
        raise ConfigError(
            f"this command is one process, and a launcher started {place.size} of it",
            where="WORLD_SIZE in the environment",
            next_step="set trainer.processes; or start `prl orchestrator` alone and `prl trainer` with the launcher",
        )


def run_trainer(config: RLConfig) -> int:
    """Run the trainer alone: in this process, as one of those that torchrun started, or in `trainer.processes`.

    Returns the number of batches that went into the last checkpoint.
    """
    use_plugins(config)
    place = find_place()
    check_workers(config, check_names(config))
    # The others find the folder as the main one leaves it, when they have joined it.
    folder = attach_run(config) if place.is_main else RunFolder(config.run.directory)
    with _told(folder, config, "trainer", place):
        if place.is_main:
            tell_changes(folder, config)
        if place.size == 1 and config.trainer.processes > 1:
            LocalTrainers(config).run(threading.Event())
        else:
            train_in_world(config, threading.Event())
    newest = folder.latest_checkpoint()
    return 0 if newest is None else newest[0]


def train_in_world(config: RLConfig, stop: threading.Event) -> None:
    """Train in this process, together with the others where a launcher started several."""
    use_plugins(config)
    schedule = check_names(config)
    settings = config.trainer
    with joined_world(
        device=settings.device,
        replicas=settings.parallel.replicas,
        context=settings.parallel.context,
        patience=config.run.wait_seconds,
    ) as world:
        with world.main_first():  # the others find the model that it makes
            parts = load_parts(config, attach_run(config), schedule)
        make_train_loop(parts).run(stop)


def run_orchestrator(config: RLConfig) -> Outcome:
    """Run the orchestrator alone, against the engines that [engine] points to."""
    use_plugins(config)
    schedule = check_names(config)
    check_workers(config, schedule)
    check_secrets(config)
    folder = attach_run(config)
    with _told(folder, config, "orchestrator"):
        parts = load_parts(config, folder, schedule)
        outcome = asyncio.run(_orchestrate_alone(parts))
        _report(parts)
    return outcome


def _report(parts: RunParts) -> None:
    if parts.config.run.report:
        write_report(parts.folder, parts.tokenizer, rollouts=parts.config.orchestrator.report_rollouts)


@contextmanager
def _told(folder: RunFolder, config: RLConfig, part: str, place: Place | None = None) -> Iterator[None]:
    """Be the run's one `part`, and keep its status file true: running, then done, stopped or failed.

    The configuration is compared once more: before this process was the part, another could begin the folder anew.
    Where the part is several processes, the main one is it; of the others only a failure is told.
    """
    is_main = place is None or place.is_main
    with folder.owned(part) if is_main else nullcontext():
        state, error = "stopped", ""
        try:
            if is_main:
                with folder.shared():
                    agree(folder, config)
                folder.status.set(part, "running")
            yield
            state = "done"
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as failure:  # whatever it is, the other processes must not wait for this one
            state, error = "failed", failure.what if isinstance(failure, PrlError) else repr(failure)
            raise
        finally:
            if is_main or (state == "failed" and folder.is_run()):  # the main one may have made none
                folder.status.set(part, state, error)


async def _everything(parts: RunParts) -> Outcome:
    """Run the engine, and beside it the orchestrator and the trainer."""
    # The engine comes up before the trainer begins: transformers cannot load two models at once in one process.
    async with run_engine(parts.config.engine, parts.model) as engine:
        return await train_beside(parts.folder, _training(parts).run, _orchestrate(parts, engine))


async def _orchestrate_alone(parts: RunParts) -> Outcome:
    async with run_engine(parts.config.engine, parts.model) as engine:
        return await _orchestrate(parts, engine)


async def _orchestrate(parts: RunParts, engine: EngineClient) -> Outcome:
    config, folder = parts.config, parts.folder
    follower = WeightFollower(engine, folder, wait_seconds=config.run.wait_seconds)
    sinks = SinkSet(make_sinks(config))
    async with (
        run_executor(parts, engine) as executor,
        run_finishers(config, parts.model, parts.tokenizer) as finishing,
    ):
        orchestrator = Orchestrator(
            config.orchestrator,
            runner=group_runner(parts, executor, lambda: follower.version, finishing),
            folder=folder,
            follower=follower,
            sinks=sinks,
            renderer=None if takes_images(config) else parts.renderer,  # renderers are for text alone
            evaluations=evaluation_plans(parts, executor, lambda: follower.version),
        )
        sinks.open(folder.root, config.model_dump(mode="json"))
        try:
            return await orchestrator.run()
        finally:
            await asyncio.to_thread(sinks.close)


def _training(parts: RunParts) -> TrainLoop | LocalTrainers:
    """Return what trains beside the orchestrator: a loop in this process, or processes of their own."""
    return make_train_loop(parts) if parts.config.trainer.processes == 1 else LocalTrainers(parts.config)


def make_train_loop(parts: RunParts) -> TrainLoop:
    """Return the trainer's loop of a run."""
    config = parts.config
    settings = config.trainer.model_copy(update={"model": parts.model})
    trainer = Trainer(settings)
    return TrainLoop(
        trainer,
        parts.folder,
        steps=config.orchestrator.steps,
        max_async_level=config.orchestrator.max_async_level,
        wait_seconds=config.run.wait_seconds,
        warm_up=_warm_up(parts),
        broadcast=_broadcast(trainer, parts.folder),
    )


def _broadcast(trainer: Trainer, folder: RunFolder) -> Broadcast | None:
    """Return what sends the weights; where nothing does, take back what a killed trainer that did offered."""
    if trainer.config.weight_transfer == "broadcast":
        return Broadcast(trainer, folder)
    if trainer.world.is_main:
        TransferBoard(folder.transfer).withdraw()
    return None


def _warm_up(parts: RunParts) -> Callable[[Trainer], None] | None:
    """Return the supervised phase before the first batch, None where the configuration has none."""
    section = parts.config.warmup
    if section.steps == 0:
        return None

    def run(trainer: Trainer) -> None:
        samples = supervised_samples(parts.schedule, parts.renderer, parts.tokenizer)
        if not trainer.world.is_main:
            warm_up(trainer, samples, section.steps, section.batch_size, lr=section.lr)
            return
        with PhaseLog("warm-up", section.steps, parts.folder.warmup) as log:
            warm_up(trainer, samples, section.steps, section.batch_size, lr=section.lr, on_step=log.step)

    return run
