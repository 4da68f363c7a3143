"""Options of the executor, `[executor_options]` of a run."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt


class RayOptions(BaseModel):
    """Where the workers run and how many there are."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    address: str | None = Field(
        default=None, description='a running cluster, "auto" for the one of this machine; absent: a Ray of our own'
    )
    namespace: str | None = Field(default=None, description="Ray namespace of the workers")
    num_workers: PositiveInt = Field(default=2, description="worker processes")
    rollouts_per_worker: PositiveInt = Field(default=256, description="rollouts that one worker plays at once")
    cpus_per_worker: Annotated[float, Field(ge=0)] = Field(default=1.0, description="CPUs that Ray counts for a worker")
    placement: Literal["SPREAD", "DEFAULT"] = Field(
        default="SPREAD", description="spread the workers over the nodes, or let Ray fill one after the other"
    )
    max_replays: Annotated[int, Field(ge=0)] = Field(
        default=2, description="how often a rollout is played again when its worker died"
    )
    start_seconds: Annotated[float, Field(gt=0)] = Field(
        default=300.0, description="how long a worker may take to come up; a full cluster keeps it waiting"
    )
    runtime_env: dict[str, Any] = Field(default_factory=dict, description="Ray's runtime environment of the workers")
    object_store_mb: PositiveInt = Field(default=256, description="object store of a Ray of our own, in MiB")
