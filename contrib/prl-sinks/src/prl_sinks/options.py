"""Options of the sinks, `[sink_options.NAME]` of a run. Keys and passwords stay in each program's own environment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class _Options(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class WandbOptions(_Options):
    """Options of `wandb`."""

    project: str = Field(default="prl", description="project that the run belongs to")
    entity: str | None = Field(default=None, description="user or team; absent: the account's own")
    name: str | None = Field(default=None, description="name of the run; absent: that of its folder")
    group: str | None = Field(default=None, description="group that the run belongs to")
    tags: tuple[str, ...] = Field(default=(), description="tags of the run")
    mode: Literal["online", "offline"] | None = Field(default=None, description="absent: what WANDB_MODE says")


class TrackioOptions(_Options):
    """Options of `trackio`."""

    project: str = Field(default="prl", description="project that the run belongs to")
    name: str | None = Field(default=None, description="name of the run; absent: that of its folder")
    space_id: str | None = Field(default=None, description="a Hugging Face Space that holds the dashboard")
    server_url: str | None = Field(default=None, description="a Trackio server of yours")


class TensorboardOptions(_Options):
    """Options of `tensorboard`."""

    directory: Path | None = Field(default=None, description="absent: `tensorboard` in the run folder")


class PrometheusOptions(_Options):
    """Options of `prometheus`."""

    port: Annotated[int, Field(ge=0, le=65535)] | None = Field(
        default=None, description="serve GET /metrics on this port; 0 takes a free one"
    )
    host: str = Field(default="127.0.0.1", description="address that is listened on")
    textfile: Path | None = Field(default=None, description="write to this file, as node_exporter reads them")
    labels: dict[str, str] = Field(default_factory=dict, description="labels of every metric, such as the run's name")

    @model_validator(mode="after")
    def _somewhere(self) -> PrometheusOptions:
        if self.port is None and self.textfile is None:
            raise ValueError("give a port, a textfile, or both")
        return self
