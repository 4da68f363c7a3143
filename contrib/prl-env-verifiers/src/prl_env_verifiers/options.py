"""Options of the environment `verifiers`."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

Block = dict[str, Any]


class VerifiersOptions(BaseModel):
    """Which taskset, and what plays it. Blocks are verifiers' own configs, which verifiers checks.

    How the model samples is not among them: that is the run's `[sampling]`, whatever a harness asks for.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    taskset: Block = Field(description="its `id`, which is the module that exports it; or a table with its own options")
    harness: Block | None = Field(
        default=None, description="the program that plays: its `id`, or a table with more; absent: the taskset's own"
    )
    runtime: Block | None = Field(
        default=None, description="where the program runs: its `type`, or a table with more; absent: subprocess"
    )
    select: Block = Field(default_factory=dict, description="which tasks: include, exclude, shuffle, seed, skip, limit")
    env: Block = Field(
        default_factory=dict, description="the rest of verifiers' env block: id, timeout, and one table for each agent"
    )

    @field_validator("taskset", "harness", mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        return {"id": value} if isinstance(value, str) else value

    @field_validator("runtime", mode="before")
    @classmethod
    def _typed(cls, value: Any) -> Any:
        return {"type": value} if isinstance(value, str) else value

    @field_validator("taskset")
    @classmethod
    def _has_an_id(cls, taskset: Block) -> Block:
        if not isinstance(taskset.get("id"), str) or not taskset["id"].strip():
            raise ValueError("name the taskset: its `id` is the module that exports it")
        return taskset

    @field_validator("env")
    @classmethod
    def _has_no_taskset(cls, env: Block) -> Block:
        if "taskset" in env:
            raise ValueError("the taskset stands in `taskset`, beside `env`")
        return env
