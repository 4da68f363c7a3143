"""Settings of a supervised run, the file that `prl sft -c file.toml` reads."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from prl_train.trainer.config import TrainerConfig

Place = Annotated[str, BeforeValidator(lambda value: os.fspath(value) if isinstance(value, os.PathLike) else value)]
"""A path or a hub id."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SourceConfig(_Section):
    """One place that rows come from.

    Rows have `messages` (or `prompt` and `completion`) and, if they use tools, `tools` or `tool_defs`.
    """

    path: Place = Field(
        min_length=1,
        description="a JSON Lines or .parquet file, a directory of these or of `save_to_disk`, or a hub id",
    )
    split: str = Field(default="train", description="split of a data set that has several")
    subset: str | None = Field(default=None, description="configuration of a hub data set that has several")
    revision: str | None = Field(default=None, description="commit or tag of a hub data set")
    weight: Annotated[float, Field(gt=0)] = Field(
        default=1.0, description="share of an epoch: 1 each row once, 2 twice, 0.25 a quarter of the rows"
    )


class RowsConfig(_Section):
    """Rows: one `path`, or several `[[...sources]]` with a share each."""

    path: Place | None = Field(default=None, description="as `path` of a source, where there is only one")
    split: str = Field(default="train", description="split, where `path` names a data set that has several")
    subset: str | None = Field(default=None, description="configuration, where `path` names a data set with several")
    sources: tuple[SourceConfig, ...] = Field(default=(), description="several sources instead of one `path`")
    max_rows: Annotated[int, Field(ge=1)] | None = Field(default=None, description="use only the first rows")

    @model_validator(mode="after")
    def _one_way(self) -> RowsConfig:
        if (self.path is None) == (not self.sources):
            raise ValueError("give either `path` or a list of `sources`")
        return self

    def all_sources(self) -> tuple[SourceConfig, ...]:
        """Return the sources, whichever way they were written."""
        if self.path is None:
            return self.sources
        return (SourceConfig(path=self.path, split=self.split, subset=self.subset),)


class DataConfig(RowsConfig):
    """Where the rows are and what of them is trained.

    A message's own `train` (true or false) or `weight` (1 or 0) wins over `roles`.
    """

    roles: tuple[str, ...] = Field(
        default=("assistant",),
        min_length=1,
        description="roles whose tokens are targets; others than assistant train their body only",
    )
    samples: Literal["auto", "whole", "per_turn", "last"] = Field(
        default="auto",
        description="samples of a conversation: as few as give each trained turn the prompt that a sampler would have, "
        "one full render, one a trained turn, or the last trained turn alone",
    )
    too_long: Literal["truncate", "drop", "error"] = Field(
        default="truncate", description="what becomes of a sample with more than trainer.seq_len tokens; counted"
    )
    bad_rows: Literal["error", "skip"] = Field(
        default="error",
        description="what to do with a row that cannot be rendered or has no target; skipped ones count",
    )
    check_rows: bool = Field(default=True, description="read every row once before the first step")
    shuffle: bool = Field(default=True, description="another order each epoch, from the trainer's seed")
    workers: Annotated[int, Field(ge=0)] = Field(
        default=0, description="processes that render and tokenise ahead; 0 does it between the steps"
    )


class EvalConfig(RowsConfig):
    """Rows whose loss is measured and never trained."""

    every: Annotated[int, Field(ge=1)] = Field(default=100, description="steps between two measurements")


class SftConfig(_Section):
    """Everything a supervised run needs."""

    model: str = Field(min_length=1, description="directory or hub id of the model")
    use_renderer: bool = Field(
        default=True,
        description="false: the model's own chat template through the `default` renderer, where its mask can be proven",
    )
    renderer: str = Field(default="auto", description="name of a renderer plugin")
    renderer_options: dict[str, Any] = Field(default_factory=dict, description="options of the renderer")
    data: DataConfig
    eval: EvalConfig | None = Field(default=None, description="a second set of rows, to see what the model learns")
    directory: Path = Field(
        default=Path("runs/sft"), description="where the run keeps metrics, checkpoints and weights"
    )
    steps: int | None = Field(default=None, ge=1, description="optimizer steps; null trains `epochs`")
    epochs: int = Field(default=1, ge=1, description="passes over the rows, where `steps` is null")
    rows_per_step: int = Field(
        default=1, ge=1, description="packed rows of trainer.seq_len tokens in one optimizer step"
    )
    trainer: TrainerConfig = Field(default_factory=lambda: TrainerConfig())

    @model_validator(mode="after")
    def _one_renderer(self) -> SftConfig:
        if not self.use_renderer and self.renderer not in ("auto", TEMPLATE):
            raise ValueError(f"use_renderer = false, but renderer = {self.renderer!r}; remove one of both")
        return self

    @property
    def renderer_name(self) -> str:
        """The renderer that is used."""
        return self.renderer if self.use_renderer else TEMPLATE


TEMPLATE = "default"
"""The renderer that runs a model's own chat template."""
