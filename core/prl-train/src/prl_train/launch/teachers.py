"""What a run has besides its own model: teachers to learn from, and images to prepare."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from prl.client.pool import EnginePool
from prl.client.vision import is_vision_language, read_model_config, vision_tokens
from prl.contracts import RolloutFilter
from prl.plugin import LossEntry, get_registry
from prl.tokenizer import Tokenizer
from prl.trajectory import InterleaveResult
from prl.types import ConfigError, Message, Rollout, about_key
from prl_train.config import EngineSection, ImagesSection, RLConfig
from prl_train.images import ImageAttacher, ImageCache
from prl_train.images.processor import ModelImageProcessor
from prl_train.orchestrator.groups import Finisher
from prl_train.teacher import TeacherLogprobsSection
from prl_train.teacher.client import read_api_key
from prl_train.teacher.filter import TeacherFilter
from prl_train.teacher.logprobs import TeacherScorer
from prl_train.teacher.vocabulary import check_vocabulary

from .engines import make_pool, served_model, until_up

SAMPLED = "inference_logprobs"
TAUGHT = "teacher_logprobs"


def check_teacher(config: RLConfig) -> None:
    """Raise `ConfigError` where the loss does not fit the teacher; nothing is connected to."""
    loss = get_registry().find(LossEntry, config.trainer.loss.name)
    place = f"trainer.loss.name = {loss.name!r}"
    if config.teacher.rollouts is not None and SAMPLED in loss.streams:
        raise ConfigError(
            f"the loss {loss.name!r} compares with what an engine sampled, and the teacher's rollouts were not sampled",
            where=f"[teacher.rollouts], and {place}",
            next_step=f"choose a loss that does not: {', '.join(_without_sampler()) or 'none is offered'}",
            keys=[("teacher", "rollouts"), ("trainer", "loss", "name")],
        )
    if config.orchestrator.group_size < 2 and compares_rollouts(config):
        raise ConfigError(
            "orchestrator.group_size = 1 leaves no siblings to compare a rollout with",
            where="orchestrator.group_size",
            next_step="set orchestrator.group_size to 2 or more; only what reads no advantages can do with 1",
            keys=[("orchestrator", "group_size")],
        )
    if TAUGHT in loss.streams and config.teacher.logprobs is None:
        raise ConfigError(
            f"the loss {loss.name!r} reads a teacher's log-probabilities, and no teacher gives them",
            where=place,
            next_step='add a section [teacher.logprobs] with base_urls = ["http://host:port"]',
            keys=[("trainer", "loss", "name")],
        )
    if config.teacher.logprobs is not None:
        if config.sampling.temperature != 1.0:
            raise ConfigError(
                f"the teacher scores at temperature 1, and our model samples at {config.sampling.temperature:g}: "
                "losses would compare two distributions that differ also where both models agree",
                where="sampling.temperature, beside [teacher.logprobs]",
                next_step="set sampling.temperature = 1",
                keys=[("sampling", "temperature"), ("teacher", "logprobs")],
            )
        with about_key("teacher", "logprobs"):
            make_pool(_engine(config.teacher.logprobs))


def check_secrets(config: RLConfig) -> None:
    """Raise `ConfigError` where the teacher's API key is not in this process's environment."""
    if config.teacher.rollouts is not None:
        with about_key("teacher", "rollouts"):
            read_api_key(config.teacher.rollouts)


def compares_rollouts(config: RLConfig) -> bool:
    """Whether rollouts are compared with their siblings: not where all are to be imitated, or no loss reads it."""
    loss = get_registry().find(LossEntry, config.trainer.loss.name)
    return config.teacher.rollouts is None and loss.advantages


def teacher_filters(config: RLConfig) -> dict[str, RolloutFilter]:
    """Return the filter of a teacher's rollouts, by its label; none where there is no teacher."""
    section = config.teacher.rollouts
    return {} if section is None else {TeacherFilter.name: TeacherFilter(section)}


@dataclass(frozen=True, slots=True)
class Finishing:
    """What completes the samples of rollouts, and who is told of the messages that rollouts will begin with."""

    finishers: Sequence[Finisher] = ()
    expect: Callable[[Sequence[Message]], None] | None = None


@asynccontextmanager
async def run_finishers(config: RLConfig, model: str, tokenizer: Tokenizer) -> AsyncIterator[Finishing]:
    """Yield what completes the samples of rollouts: images first, then a teacher's log-probabilities."""
    images = make_attacher(config.images, model)
    finishers: list[Finisher] = [] if images is None else [images]
    pool: EnginePool | None = None
    try:
        if config.teacher.logprobs is not None:
            pool = make_pool(_engine(config.teacher.logprobs))
            scorer = await _scorer(config.teacher.logprobs, pool, tokenizer)
            finishers.append(ScoreFinisher(scorer))
        yield Finishing(finishers, None if images is None else images.expect)
    finally:
        if pool is not None:
            await pool.close()
        if images is not None:
            await images.close()


def make_attacher(section: ImagesSection, model: str) -> ImageAttacher | None:
    """Return what gives samples their images; None for a model that takes none."""
    config = read_model_config(model)
    if config is None or not is_vision_language(config):
        return None
    cache = ImageCache(
        ModelImageProcessor(model), max_bytes=section.cache_megabytes * 1_000_000, threads=section.threads
    )
    tokens = vision_tokens(config, where=f"{model}/config.json")
    return ImageAttacher(cache, tokens, section.policy())


class ScoreFinisher:
    """Gives the samples of a rollout the teacher's log-probabilities."""

    def __init__(self, scorer: TeacherScorer) -> None:
        self.scorer = scorer

    async def __call__(self, rollout: Rollout, result: InterleaveResult) -> InterleaveResult:
        """Return the samples scored; they are sent one after the other, rollouts beside each other."""
        return replace(result, samples=[await self.scorer.fill(sample) for sample in result.samples])


async def _scorer(section: TeacherLogprobsSection, pool: EnginePool, tokenizer: Tokenizer) -> TeacherScorer:
    await until_up(pool, _engine(section))
    model = section.model or await served_model(pool)
    await check_vocabulary(pool, model, tokenizer)
    sizes = {str(card["id"]): card.get("max_model_len") for card in await pool.models()}
    context = sizes.get(model)
    return TeacherScorer(
        pool,
        model=model,
        max_concurrency=section.max_concurrency,
        context=context if isinstance(context, int) else None,
    )


def _engine(section: TeacherLogprobsSection) -> EngineSection:
    return EngineSection(
        base_urls=section.base_urls,
        route=section.route,
        request_seconds=section.request_seconds,
        start_seconds=section.start_seconds,
        absent_seconds=section.absent_seconds,
    )


def _without_sampler() -> list[str]:
    losses = get_registry().all(LossEntry)
    return [one.name for one in losses if not one.streams and not one.advantages]
