"""Opening a run folder: the same configuration and plugins, or a refusal; and what an earlier run becomes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from prl.config import load_config
from prl.types import ConfigError, PluginError, PrlError
from prl_train.config import RLConfig
from prl_train.launch.open_run import attach_run, begin_run, use_plugins
from prl_train.launch.parts import check_names
from prl_train.run import RunError, write_json

QUICKSTART = Path(__file__).parents[4] / "docs" / "examples" / "quickstart.toml"


def config(directory: Path, **changes: Any) -> RLConfig:
    values: dict[str, Any] = {
        "model": {"path": "m"},
        "environments": [{"name": "reverse-text"}],
        "run": {"directory": str(directory)},
        **changes,
    }
    return RLConfig.model_validate(values)


def test_the_folder_keeps_the_resolved_configuration_and_the_plugins(tmp_path: Path) -> None:
    folder = begin_run(config(tmp_path / "run"))
    again = load_config(RLConfig, folder.config)
    assert again == config(tmp_path / "run")
    plugins = json.loads(folder.plugins.read_text())
    assert "prl-train" in [row["name"] for row in plugins["plugins"]]


def test_an_earlier_run_is_not_touched_unless_told(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    begin_run(config(directory)).metrics.write_text("{}\n")
    with pytest.raises(RunError, match="already holds a run") as caught:
        begin_run(config(directory))
    assert "--resume" in caught.value.next_step
    resumed = begin_run(config(directory, run={"directory": str(directory), "existing": "resume"}))
    assert resumed.metrics.exists()
    replaced = begin_run(config(directory, run={"directory": str(directory), "existing": "overwrite"}))
    assert not replaced.metrics.exists()


def test_a_process_with_another_configuration_is_refused_with_the_keys(tmp_path: Path) -> None:
    attach_run(config(tmp_path / "run"))
    attach_run(config(tmp_path / "run", engine={"url": "http://127.0.0.1:1"}, orchestrator={"steps": 99}))
    with pytest.raises(ConfigError, match=r"these differ: sampling\.temperature, trainer\.lr"):
        attach_run(config(tmp_path / "run", sampling={"temperature": 0.5}, trainer={"lr": 0.1}))


def test_a_run_may_go_on_with_other_devices_and_another_number_of_processes(tmp_path: Path) -> None:
    attach_run(config(tmp_path / "run", trainer={"processes": 4, "parallel": {"context": 2}}))
    attach_run(config(tmp_path / "run", trainer={"processes": 1, "device": "cuda", "checkpoint_async": True}))
    with pytest.raises(ConfigError, match=r"these differ: trainer\.seq_len"):
        attach_run(config(tmp_path / "run", trainer={"processes": 4, "seq_len": 64}))


def test_what_an_error_says_to_change_may_change_on_a_resume(tmp_path: Path) -> None:
    """`widen the filters`, `raise orchestrator.max_filtered_groups`: `--resume` must take what it asked for."""
    attach_run(config(tmp_path / "run", filters=[{"name": "difficulty", "options": {"low": 0.2}}]))
    limits = {"max_filtered_groups": 99, "max_failed_groups": 9, "dead_after": 20, "environment_seconds": 60.0}
    orchestrator = {**limits, "rollout_seconds": 900.0, "keep_rollouts": 100}
    attach_run(config(tmp_path / "run", filters=[], orchestrator=orchestrator))


def test_a_run_goes_on_with_its_own_seed(tmp_path: Path) -> None:
    """Another seed is another order of tasks: some would be trained on twice, others never."""
    directory = str(tmp_path / "run")
    attach_run(config(tmp_path / "run"))
    with pytest.raises(ConfigError, match=r"these differ: run\.seed"):
        attach_run(config(tmp_path / "run", run={"directory": directory, "seed": 7, "wait_seconds": 5.0}))


def test_a_run_whose_engines_would_get_adapters_alone_is_refused(tmp_path: Path) -> None:
    adapters = config(tmp_path / "run", renderer="qwen3", trainer={"lora": {"publish": "adapter"}})
    with pytest.raises(ConfigError, match="load whole weights, not adapters"):
        check_names(adapters)


def test_unset_values_do_not_differ_from_themselves(tmp_path: Path) -> None:
    attach_run(config(tmp_path / "run", trainer={"threads": None}))
    attach_run(config(tmp_path / "run", trainer={"threads": None}))


def test_a_process_with_other_plugins_is_refused(tmp_path: Path) -> None:
    folder = attach_run(config(tmp_path / "run"))
    from prl.plugin.snapshot import Snapshot

    saved = json.loads(folder.plugins.read_text())
    rows = [{**row, "version": "9.9"} if row["name"] == "prl-train" else row for row in saved["plugins"]]
    write_json(folder.plugins, Snapshot(tuple(rows), saved["prefer"]).to_dict())
    with pytest.raises(PluginError, match=r"prl-train: the run has prl-train 9\.9"):
        attach_run(config(tmp_path / "run"))


@pytest.mark.parametrize(
    ("changes", "message", "hint"),
    [
        ({"environments": [{"name": "revers-text"}]}, "revers-text", "reverse-text"),
        ({"environments": [{"name": "reverse-text", "options": {"word": 2}}]}, "unknown key 'word'", "words"),
        ({"renderer": "qwen33"}, "qwen33", "qwen3"),
        ({"engine": {"kind": "locall"}}, "locall", "local"),
        ({"engine": {"options": {"max_batchsize": 2}}}, "unknown key 'max_batchsize'", "max_batch_size"),
        ({"client_mode": "rendererr"}, "rendererr", "renderer"),
        ({"sinks": ["consol"]}, "consol", "console"),
        ({"trainer": {"attention": "sdpaa"}}, "sdpaa", "sdpa"),
    ],
)
def test_wrong_names_are_found_before_anything_is_loaded(
    tmp_path: Path, changes: dict[str, Any], message: str, hint: str
) -> None:
    with pytest.raises(PrlError) as caught:
        check_names(config(tmp_path, **changes))
    assert message in caught.value.what
    assert hint in caught.value.next_step


def test_a_model_needs_exactly_one_source(tmp_path: Path) -> None:
    for model in ({}, {"path": "m", "scratch": {}}):
        with pytest.raises(ValueError, match="exactly one of"):
            config(tmp_path, model=model)


def test_an_unknown_key_of_the_file_is_named_with_the_close_one(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('[model]\npath = "m"\n[[environments]]\nname = "reverse-text"\n[orchestrator]\ngroup_sise = 4\n')
    with pytest.raises(ConfigError) as caught:
        load_config(RLConfig, path)
    assert "orchestrator.group_sise" in caught.value.what
    assert "group_size" in caught.value.next_step
    assert caught.value.where.endswith(":6")


def test_the_quickstart_file_is_valid_and_its_names_are_installed() -> None:
    checked = load_config(RLConfig, QUICKSTART)
    use_plugins(checked)
    assert [entry.environment.name for entry in check_names(checked).environments] == ["number-guessing"]
