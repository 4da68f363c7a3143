"""Open a run's folder: the same configuration and the same plugins in every process, or a refusal."""

from __future__ import annotations

import json
import sys
import tomllib
from typing import Any

from prl.config import to_toml
from prl.plugin import compare_snapshots, configure_registry, get_registry, read_snapshot, take_snapshot
from prl.types import ConfigError, PluginError, PrlError
from prl_train.changes import differences
from prl_train.config import RLConfig
from prl_train.run import RunError, RunFolder
from prl_train.run.files import create_exclusively
from prl_train.trainer.config import OptimizerConfig

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
    "trainer.threads",
    "trainer.attention",
    "trainer.compile",
    "trainer.gradient_checkpointing",
    "trainer.logprob_chunk",
    "trainer.logprob_vocabulary_chunk",
    "trainer.weights_file_gb",
    "trainer.weight_transfer",
    "trainer.transfer",
    *(f"trainer.{name}" for name in OptimizerConfig.model_fields),
    "trainer.checkpoint_async",
    "trainer.checkpoint_every",
    "trainer.keep_checkpoints",
    "plugins",
)
"""What may change when a run is resumed, or differ between its processes: what each step computes is not among it,
but for the optimizer, whose settings people change on a resume (the processes of a trainer must agree on them)."""


def use_plugins(config: RLConfig) -> None:
    """Make this process's registry the one that `[plugins]` asks for."""
    configure_registry(config.plugins.settings())


def begin_run(config: RLConfig) -> RunFolder:
    """Open the folder for a process that runs everything: `run.existing` says what becomes of an earlier run."""
    folder = RunFolder(config.run.directory)
    if folder.is_run() and config.run.existing == "overwrite":
        with folder.shared():
            folder.clear()
    if folder.is_run() and config.run.existing == "error" and not folder.is_unused():
        raise RunError(
            f"{folder.root} already holds a run",
            where="run.directory",
            next_step="add --resume to go on with it, --overwrite to replace it, or name another run.directory",
            keys=[("run", "directory")],
        )
    return attach_run(config)


def attach_run(config: RLConfig) -> RunFolder:
    """Open the folder for one of several processes: the first to come writes configuration and plugin snapshot.

    Where they differ from what an earlier start wrote, that start handed over no batch, and no process of it is left,
    the folder is begun anew: there is nothing to lose, and what made that start fail had to be changed.
    """
    folder = RunFolder(config.run.directory)
    with folder.shared():
        try:
            agree(folder, config)
        except (ConfigError, PluginError) as differing:
            if not folder.is_unused():
                raise
            _begin_anew(folder, differing)
            agree(folder, config)
    return folder


def agree(folder: RunFolder, config: RLConfig) -> None:
    """Write configuration and plugin snapshot into a claimed folder, or compare: raise where the run has others."""
    _agree_on_config(folder, config)
    _agree_on_plugins(folder)


def _begin_anew(folder: RunFolder, differing: PrlError) -> None:
    try:
        folder.clear(must_be_certain=True)
    except RunError as unsure:
        raise differing from unsure
    print(f"prl: {folder.root} is begun anew, for no batch was handed over in it: {differing.what}", file=sys.stderr)


def _agree_on_config(folder: RunFolder, config: RLConfig) -> None:
    if create_exclusively(folder.config, to_toml(config).encode()):
        return
    saved, mine = _saved_and(folder, config)
    differing = sorted(differences(_fixed_part(saved), _fixed_part(mine)))
    if differing:
        raise ConfigError(
            f"this run was begun with another configuration; these differ: {', '.join(differing)}",
            where=str(folder.config),
            next_step="use the run's own configuration, or another run.directory",
        )


def tell_changes(folder: RunFolder, config: RLConfig) -> None:
    """Say which settings of the trainer are not those that the run was begun with: the new ones hold."""
    saved, mine = _saved_and(folder, config)
    changed = sorted(differences(saved.trainer.model_dump(mode="json"), mine.trainer.model_dump(mode="json")))
    if changed:
        names = ", ".join(f"trainer.{name}" for name in changed)
        print(f"prl: {folder.root} goes on with other settings than it began with: {names}", file=sys.stderr)


def _saved_and(folder: RunFolder, config: RLConfig) -> tuple[RLConfig, RLConfig]:
    """Return the run's saved configuration and this one, both as they come out of a file."""
    try:
        saved = RLConfig.model_validate(tomllib.loads(folder.config.read_text(encoding="utf-8")))
    except ValueError as error:
        raise ConfigError(
            f"the run's saved configuration cannot be read: {error}",
            where=str(folder.config),
            next_step="the run was made by another version of prl-train; use a new run.directory",
        ) from error
    # Both went through TOML, which has no null: an unset key reads back as its default on either side.
    return saved, RLConfig.model_validate(tomllib.loads(to_toml(config)))


def _fixed_part(config: RLConfig) -> dict[str, Any]:
    values: dict[str, Any] = config.model_dump(mode="json")
    for path in MAY_DIFFER:
        *sections, key = path.split(".")
        place = values
        for section in sections:
            place = place[section]
        place.pop(key, None)
    return values


def _agree_on_plugins(folder: RunFolder) -> None:
    mine = take_snapshot(get_registry())
    data = json.dumps(mine.to_dict(), indent=1, ensure_ascii=False) + "\n"
    if not create_exclusively(folder.plugins, data.encode()):
        compare_snapshots(read_snapshot(folder.plugins), mine, where=str(folder.plugins))
