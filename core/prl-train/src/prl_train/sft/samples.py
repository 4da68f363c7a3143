"""The samples of a supervised run: its rows, through its renderer, in its order."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from prl.types import ConfigError, MicroBatch, RenderError, about_key
from prl_train.data import (
    IndexedSource,
    LocalBuilder,
    PooledBuilder,
    RowMix,
    SampleBuilder,
    SftPacker,
    open_rows,
    pack_supervised,
    read_row,
)
from prl_train.data.sft_rows import KNOWN_COLUMNS
from prl_train.data.sft_source import Built, RowBuilder
from prl_train.errors import DataError

from .config import RowsConfig, SftConfig

LOG = logging.getLogger("prl.sft")


@dataclass(slots=True)
class SupervisedData:
    """A run's packer, what its rows are named by, and what must be closed at the end."""

    packer: SftPacker
    fingerprint: str
    builder: RowBuilder


@dataclass(frozen=True, slots=True)
class RowRecipe:
    """How any process makes the function that builds rows: from names and settings alone."""

    config: SftConfig
    rows: RowsConfig

    def __call__(self) -> Callable[[int], Built]:
        """Load the tokenizer, make the renderer, open the rows."""
        return build_function(self.config, open_mix(self.rows))


def build_function(config: SftConfig, mix: RowMix) -> Callable[[int], Built]:
    """Return what turns a row's number into its samples, or into the error that it has none."""
    from prl import load_tokenizer
    from prl_train.chosen import make_renderer

    with about_key("model"):
        tokenizer = load_tokenizer(config.model)
    renderer = make_renderer(tokenizer, config.renderer_name, config.renderer_options, model=config.model)
    builder = SampleBuilder(renderer, tokenizer, config.data.roles, config.data.samples)

    def build(index: int) -> Built:
        where = mix.where(index)
        try:
            return builder.build(read_row(mix[index], where), index=index)
        except RenderError as error:
            step = f"{error.next_step}; or set data.bad_rows = 'skip'"
            return DataError(error.what, where=f"{where}: {error.where}", next_step=step)

    return build


def open_mix(rows: RowsConfig) -> RowMix:
    """Open all sources of a section; raise `ConfigError` where they hold no row."""
    opened = [
        (store, source.weight)
        for source in rows.all_sources()
        for store in open_rows(source.path, split=source.split, subset=source.subset, revision=source.revision)
    ]
    mix = RowMix([store for store, _ in opened], [weight for _, weight in opened], rows.max_rows)
    if len(mix) == 0:
        names = ", ".join(source.path for source in rows.all_sources())
        raise ConfigError("the data has no rows", where=names, next_step="give at least one row")
    return mix


def training_data(config: SftConfig) -> SupervisedData:
    """Return the data of a run, every row checked first where the configuration says so."""
    mix = open_mix(config.data)
    if config.data.check_rows:
        check_rows(mix)
    workers = config.data.workers
    builder: RowBuilder = (
        PooledBuilder(RowRecipe(config, config.data), workers) if workers else LocalBuilder(build_function(config, mix))
    )
    source = IndexedSource(
        len(mix),
        builder,
        order=lambda epoch: mix.order(epoch, seed=config.trainer.seed, shuffle=config.data.shuffle),
        epochs=None if config.steps is not None else config.epochs,
        on_error=_tell if config.data.bad_rows == "skip" else None,
    )
    packer = SftPacker(source, config.trainer.seq_len, too_long=config.data.too_long)
    return SupervisedData(packer, mix.fingerprint(), builder)


def evaluation_rows(config: SftConfig) -> list[MicroBatch]:
    """Return the packed rows of the evaluation set, in file order; none where there is no such set."""
    if config.eval is None:
        return []
    mix = open_mix(config.eval)
    source = IndexedSource(
        len(mix),
        LocalBuilder(build_function(config, mix)),
        order=lambda epoch: mix.order(epoch, seed=0, shuffle=False),
        on_error=_tell if config.data.bad_rows == "skip" else None,
    )
    packer = SftPacker(source, config.trainer.seq_len, too_long=config.data.too_long)
    rows: list[MicroBatch] = []
    while True:
        try:
            rows.append(pack_supervised(packer.next_samples()))
        except StopIteration:
            return rows


def check_rows(mix: RowMix) -> None:
    """Read every row: a bad one must not wait for the night to stop the run. Columns nobody knows are told."""
    unknown: dict[str, str] = {}
    for index in range(len(mix)):
        where = mix.where(index)
        for column in read_row(mix[index], where).unknown_columns:
            unknown.setdefault(column, where)
    if unknown:
        known = ", ".join(sorted(KNOWN_COLUMNS))
        first = ", ".join(f"{column} (first in {where})" for column, where in sorted(unknown.items()))
        LOG.warning("columns that are not used: %s; known are: %s", first, known)


def _tell(error: DataError) -> None:
    LOG.warning("%s is skipped: %s", error.where, error.what)
