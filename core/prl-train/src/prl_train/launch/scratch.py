"""Make the model of a `[model.scratch]` table: a small tokenizer on the environments' own text, then a tiny model."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

from prl import create_renderer
from prl.plugin import RendererEntry, get_registry
from prl.tokenizer import Tokenizer, as_tokenizer
from prl.trajectory import interleave_rollout
from prl.types import ConfigError
from prl_train.config import RLConfig, ScratchSection
from prl_train.models import create_tiny_qwen3, train_small_tokenizer
from prl_train.orchestrator import Schedule
from prl_train.storage import work_directory

from .demonstrations import demonstration_rollout, demonstrations


def make_scratch_model(config: RLConfig, scratch: ScratchSection, schedule: Schedule, directory: Path) -> Path:
    """Write the model directory, whole or not at all; the same configuration always gives the same files.

    Where another process of the run was quicker, its directory stays: someone may be reading it.
    """
    control_tokens = _control_tokens(config)
    bare = train_small_tokenizer([], control_tokens, 256 + len(control_tokens))
    texts = _texts(config, scratch, schedule, as_tokenizer(bare))
    trained = train_small_tokenizer(texts, control_tokens, scratch.vocab_size)
    shape: dict[str, Any] = scratch.model_dump(exclude={"vocab_size", "tokenizer_examples"})
    with work_directory(directory) as work:
        mine = create_tiny_qwen3(work / directory.name, trained.to_str(), seed=config.run.seed, **shape)
        try:
            mine.rename(directory)
        except OSError:
            if not (directory / "config.json").is_file():
                raise
    return directory


def _control_tokens(config: RLConfig) -> tuple[str, ...]:
    if config.renderer == "auto":
        raise ConfigError(
            "a model from scratch has no chat template to find a renderer by",
            where='renderer = "auto" with [model.scratch]',
            next_step='name one, for example renderer = "qwen3"',
        )
    tokens = get_registry().find(RendererEntry, config.renderer).control_tokens
    if not tokens:
        raise ConfigError(
            f"renderer {config.renderer!r} names no control tokens, so no vocabulary can be made for it",
            where="[model.scratch]",
            next_step="choose a model family's renderer, or a trained model with `model.path`",
        )
    return tokens


def _texts(config: RLConfig, scratch: ScratchSection, schedule: Schedule, bare: Tokenizer) -> list[str]:
    """Return rendered demonstrations, made with a tokenizer of bare bytes."""
    renderer = create_renderer(bare, config.renderer, **config.renderer_options)
    texts: list[str] = []
    for environment, messages in islice(demonstrations(schedule), scratch.tokenizer_examples):
        rollout = demonstration_rollout(renderer, bare, messages, environment.tools)
        samples = interleave_rollout(rollout).samples
        texts += [bare.decode(sample.prompt_ids + sample.completion_ids) for sample in samples]
    return texts
