"""Settings of `[trainer.transfer]`."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

WeightTransferKind = Literal["directory", "broadcast"]


class TransferConfig(BaseModel):
    """How weights are sent where `weight_transfer = "broadcast"`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str = Field(default="127.0.0.1", description="address of the trainer's machine under which engines reach it")
    port: int = Field(default=0, ge=0, le=65535, description="port on which engines find the trainer; 0: a free one")
    backend: Literal["auto", "gloo", "nccl"] = Field(
        default="auto", description='"auto": nccl where trainer and engines have GPUs of their own, else gloo'
    )
    bucket_mb: float = Field(default=256.0, ge=0.001, description="what is sent at once, in 10^6 bytes")
    seconds: float = Field(
        default=120.0, gt=0.0, description="longest wait for an engine; after it weights go through a directory"
    )
