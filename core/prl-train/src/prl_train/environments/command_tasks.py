"""The tasks of `command-agent`: a JSONL file, one task a line."""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from prl.plugin.options import build_model
from prl.types import ConfigError


class CommandTask(BaseModel):
    """One task: what the agent is told, the files it finds, and the command that judges what it left.

    `check` runs in the task's folder after the agent has ended. It may write `reward.json`: a number, or an object with
    `reward` and `metrics`. Without that file the reward is 1.0 where it exits with 0, else 0.0.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str = ""
    prompt: str
    files: dict[str, str] = Field(default_factory=dict, description="relative path to text")
    check: tuple[str, ...] = Field(min_length=1)
    data: dict[str, Any] = Field(default_factory=dict, description="passed on to the agent in PRL_TASK")

    @field_validator("files")
    @classmethod
    def _inside(cls, files: dict[str, str]) -> dict[str, str]:
        for name in files:
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts or not path.parts:
                raise ValueError(f"{name!r} does not lie inside the task's folder")
        return files


def read_tasks(path: Path) -> list[CommandTask]:
    """Return the tasks of a file; raise `ConfigError` that names the line."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"the tasks cannot be read: {error}",
            where=str(path),
            next_step="name a JSONL file, one task a line, in `tasks`",
        ) from error
    tasks = [_task(line, f"{path}:{number}") for number, line in enumerate(lines, start=1) if line.strip()]
    if not tasks:
        raise ConfigError("the file holds no task", where=str(path), next_step="write one JSON object a line")
    return tasks


def _task(line: str, where: str) -> CommandTask:
    try:
        values = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"not JSON: {error}", where=where, next_step="write one JSON object a line") from error
    if not isinstance(values, dict):
        raise ConfigError("not a JSON object", where=where, next_step="write one JSON object a line")
    return build_model(CommandTask, values, where=where)


def read_reward(path: Path, passed: bool) -> tuple[float, dict[str, float]]:
    """Return reward and metrics that a check left in `reward.json`, or what its exit status says."""
    if not path.is_file():
        return float(passed), {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(value, dict):
            return float(value), {}
        return float(value["reward"]), {str(key): float(number) for key, number in value.get("metrics", {}).items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"the check wrote a reward.json that cannot be read: {type(error).__name__}: {error}",
            where="reward.json of a task's check",
            next_step='write a number, or {"reward": NUMBER, "metrics": {NAME: NUMBER}}',
        ) from error
