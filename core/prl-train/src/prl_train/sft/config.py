"""Settings of a supervised run, the file that `prl sft -c file.toml` reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from prl_train.trainer.config import TrainerConfig


class DataConfig(BaseModel):
    """Where the rows are and what of them is trained."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: Path = Field(description="JSON Lines file; rows have `messages` (or `prompt` + `completion`) and `tools`")
    roles: tuple[str, ...] = Field(
        default=("assistant",),
        min_length=1,
        description="roles whose tokens are targets; others than assistant train their body only",
    )
    bad_rows: Literal["error", "skip"] = Field(
        default="error",
        description="what to do with a row that cannot be rendered or has no target; skipped ones count",
    )
    shuffle: bool = Field(default=True, description="another order each epoch, from the trainer's seed")


class SftConfig(BaseModel):
    """Everything a supervised run needs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field(min_length=1, description="directory or hub id of the model")
    renderer: str = Field(default="auto", description="name of a renderer plugin")
    renderer_options: dict[str, Any] = Field(default_factory=dict, description="options of the renderer")
    data: DataConfig
    directory: Path = Field(
        default=Path("runs/sft"), description="where the run keeps metrics, checkpoints and weights"
    )
    steps: int | None = Field(default=None, ge=1, description="optimizer steps; null trains `epochs`")
    epochs: int = Field(default=1, ge=1, description="passes over the rows, where `steps` is null")
    rows_per_step: int = Field(
        default=1, ge=1, description="packed rows of trainer.seq_len tokens in one optimizer step"
    )
    trainer: TrainerConfig = Field(default_factory=lambda: TrainerConfig())
