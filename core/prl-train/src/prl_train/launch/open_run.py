"""Open a run's folder: the same configuration and the same plugins in every process, or a refusal."""

from __future__ import annotations

import json
import tomllib
from typing import Any

from prl.config import to_toml
from prl.plugin import compare_snapshots, configure_registry, get_registry, read_snapshot, take_snapshot
from prl.types import ConfigError
from prl_train.config import RLConfig
from prl_train.run import RunError, RunFolder
from prl_train.run.files import create_exclusively

MAY_DIFFER = (
    "run.directory",
    "run.existing",
    "run.wait_seconds",
    "run.report",
    "engine",
    "sinks",
    "sink_options",
    "executor",
    "executor_options",
    "gateway",
    "filters",
    "evaluations",
    "images.cache_megabytes",
    "images.threads",
    "orchestrator.steps",
    "orchestrator.max_concurrency",
    "orchestrator.dead_after",
    "orchestrator.max_failed_groups",
    "orchestrator.max_filtered_groups",
    "orchestrator.environment_seconds",
    "orchestrator.rollout_seconds",
    "orchestrator.keep_rollouts",
    "orchestrator.report_rollouts",
    "trainer.device",
    "trainer.processes",
    "trainer.parallel",
    "trainer.checkpoint_async",
    "trainer.checkpoint_every",
    "trainer.keep_checkpoints",
    "plugins",
)
"""What may change when a run is resumed, or differ between its processes."""


def use_plugins(config: RLConfig) -> None:
    """Make this process's registry the one that `[plugins]` asks for."""
    configure_registry(config.plugins.settings())


def begin_run(config: RLConfig) -> RunFolder:
    """Open the folder for a process that runs everything: `run.existing` says what becomes of an earlier run."""
    folder = RunFolder(config.run.directory)
    if folder.is_run() and config.run.existing == "overwrite":
        folder.clear()
    if folder.is_run() and config.run.existing == "error":
        raise RunError(
            f"{folder.root} already holds a run",
            where="run.directory",
            next_step="add --resume to go on with it, --overwrite to replace it, or name another run.directory",
        )
    return attach_run(config)


def attach_run(config: RLConfig) -> RunFolder:
    """Open the folder for one of several processes: the first to come writes configuration and plugin snapshot."""
    folder = RunFolder(config.run.directory)
    folder.claim()
    _agree_on_config(folder, config)
    _agree_on_plugins(folder)
    return folder


def _agree_on_config(folder: RunFolder, config: RLConfig) -> None:
    mine = to_toml(config)
    if create_exclusively(folder.config, mine.encode()):
        return
    try:
        saved = RLConfig.model_validate(tomllib.loads(folder.config.read_text(encoding="utf-8")))
    except ValueError as error:
        raise ConfigError(
            f"the run's saved configuration cannot be read: {error}",
            where=str(folder.config),
            next_step="the run was made by another version of prl-train; use a new run.directory",
        ) from error
    # Both went through TOML, which has no null: an unset key reads back as its default on either side.
    same_way = RLConfig.model_validate(tomllib.loads(mine))
    differing = sorted(_differences(_fixed_part(saved), _fixed_part(same_way)))
    if differing:
        raise ConfigError(
            f"this run was begun with another configuration; these differ: {', '.join(differing)}",
            where=str(folder.config),
            next_step="use the run's own configuration, or another run.directory",
        )


def _fixed_part(config: RLConfig) -> dict[str, Any]:
    values: dict[str, Any] = config.model_dump(mode="json")
    for path in MAY_DIFFER:
        *sections, key = path.split(".")
        place = values
        for section in sections:
            place = place[section]
        place.pop(key, None)
    return values


def _differences(saved: Any, mine: Any, path: str = "") -> list[str]:
    if isinstance(saved, dict) and isinstance(mine, dict):
        keys = sorted(set(saved) | set(mine))
        return [
            found
            for key in keys
            for found in _differences(saved.get(key), mine.get(key), f"{path}.{key}" if path else key)
        ]
    return [] if saved == mine else [path]


def _agree_on_plugins(folder: RunFolder) -> None:
    mine = take_snapshot(get_registry())
    data = json.dumps(mine.to_dict(), indent=1, ensure_ascii=False) + "\n"
    if not create_exclusively(folder.plugins, data.encode()):
        compare_snapshots(read_snapshot(folder.plugins), mine, where=str(folder.plugins))
