"""Opening a run folder: the same configuration and plugins, or a refusal; and what an earlier run becomes."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from prl.config import load_config, read_sources
from prl.types import ConfigError, PluginError, PrlError
from prl_train.config import RLConfig
from prl_train.distributed import Place
from prl_train.launch.open_run import attach_run, begin_run, tell_changes, use_plugins
from prl_train.launch.parts import check_names
from prl_train.launch.processes import _broadcast, _told
from prl_train.launch.workers import check_workers
from prl_train.run import PeerError, Progress, RunError, RunFolder, StepBatch, write_json

QUICKSTART = Path(__file__).parents[4] / "docs" / "examples" / "quickstart.toml"


def config(directory: Path, **changes: Any) -> RLConfig:
    values: dict[str, Any] = {
        "model": {"path": "m"},
        "environments": [{"name": "reverse-text"}],
        "run": {"directory": str(directory)},
        **changes,
    }
    return RLConfig.model_validate(values)


def begun(values: RLConfig) -> RunFolder:
    """Open the folder as a process does that hands over a batch."""
    folder = attach_run(values)
    folder.write_batch(StepBatch(step=0, samples=[], metrics={}, progress=Progress()))
    return folder


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
    begun(config(tmp_path / "run"))
    attach_run(config(tmp_path / "run", engine={"url": "http://127.0.0.1:1"}, orchestrator={"steps": 99}))
    with pytest.raises(ConfigError, match=r"these differ: sampling\.temperature, trainer\.seq_len"):
        attach_run(config(tmp_path / "run", sampling={"temperature": 0.5}, trainer={"seq_len": 64}))


def test_a_run_may_go_on_with_other_devices_and_another_number_of_processes(tmp_path: Path) -> None:
    begun(config(tmp_path / "run", trainer={"processes": 4, "parallel": {"context": 2}}))
    attach_run(config(tmp_path / "run", trainer={"processes": 1, "device": "cuda", "checkpoint_async": True}))
    with pytest.raises(ConfigError, match=r"these differ: trainer\.seq_len"):
        attach_run(config(tmp_path / "run", trainer={"processes": 4, "seq_len": 64}))


def test_the_learning_rate_may_change_on_a_resume_and_it_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`resume with a lower lr` is what a loss that is not finite tells people to do."""
    folder = begun(config(tmp_path / "run"))
    changed = config(tmp_path / "run", trainer={"lr": 1e-6, "weight_decay": 0.1, "logprob_chunk": 64, "eps": 1e-5})
    attach_run(changed)
    tell_changes(folder, changed)
    names = "trainer.eps, trainer.logprob_chunk, trainer.lr, trainer.weight_decay"
    assert capsys.readouterr().err.endswith(f"goes on with other settings than it began with: {names}\n")


def test_what_an_error_says_to_change_may_change_on_a_resume(tmp_path: Path) -> None:
    """`widen the filters`, `raise orchestrator.max_filtered_groups`: `--resume` must take what it asked for."""
    begun(config(tmp_path / "run", filters=[{"name": "difficulty", "options": {"low": 0.2}}]))
    limits = {"max_filtered_groups": 99, "max_failed_groups": 9, "dead_after": 20, "environment_seconds": 60.0}
    orchestrator = {**limits, "rollout_seconds": 900.0, "keep_rollouts": 100}
    attach_run(config(tmp_path / "run", filters=[], orchestrator=orchestrator))


def test_the_machine_that_sends_the_weights_may_change_and_the_way_they_take(tmp_path: Path) -> None:
    """The trainer comes back on another machine; or engines that take no transfers, told to use directories."""
    folder = begun(config(tmp_path / "run", trainer={"weight_transfer": "broadcast"}))
    attach_run(config(tmp_path / "run", trainer={"weight_transfer": "broadcast", "transfer": {"host": "10.0.0.9"}}))
    offer = folder.transfer / "trainer" / "offer.json"
    write_json(offer, {})
    plain = config(tmp_path / "run")
    trainer: Any = SimpleNamespace(config=plain.trainer, world=SimpleNamespace(is_main=True))
    assert _broadcast(trainer, attach_run(plain)) is None
    assert not offer.exists(), "engines would wait for a trainer that is gone"


def test_a_run_goes_on_with_its_own_seed(tmp_path: Path) -> None:
    """Another seed is another order of tasks: some would be trained on twice, others never."""
    directory = str(tmp_path / "run")
    begun(config(tmp_path / "run"))
    with pytest.raises(ConfigError, match=r"these differ: run\.seed"):
        attach_run(config(tmp_path / "run", run={"directory": directory, "seed": 7, "wait_seconds": 5.0}))


def test_a_run_whose_engines_would_get_adapters_alone_is_refused(tmp_path: Path) -> None:
    adapters = config(tmp_path / "run", renderer="qwen3", trainer={"lora": {"publish": "adapter"}})
    with pytest.raises(ConfigError, match="load whole weights, not adapters"):
        check_names(adapters)


def test_unset_values_do_not_differ_from_themselves(tmp_path: Path) -> None:
    begun(config(tmp_path / "run", trainer={"threads": None}))
    attach_run(config(tmp_path / "run", trainer={"threads": None}))


def test_a_process_with_other_plugins_is_refused(tmp_path: Path) -> None:
    folder = begun(config(tmp_path / "run"))
    from prl.plugin.snapshot import Snapshot

    saved = json.loads(folder.plugins.read_text())
    rows = [{**row, "version": "9.9"} if row["name"] == "prl-train" else row for row in saved["plugins"]]
    write_json(folder.plugins, Snapshot(tuple(rows), saved["prefer"]).to_dict())
    with pytest.raises(PluginError, match=r"prl-train: the run has prl-train 9\.9"):
        attach_run(config(tmp_path / "run"))


def test_a_start_that_failed_before_any_batch_is_no_run_yet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong model path, corrected: the next start must need neither a flag nor `rm`, and say what it replaced."""
    directory = tmp_path / "run"
    first = begin_run(config(directory, model={"path": "mdoel"}))
    (first.model).mkdir()
    again = begin_run(config(directory))
    assert not first.model.exists(), "what the first start made belongs to its configuration"
    assert load_config(RLConfig, again.config) == config(directory)
    told = capsys.readouterr().err
    assert len(told.splitlines()) == 1
    assert "begun anew" in told
    assert "these differ: model.path" in told
    begin_run(config(directory))
    assert capsys.readouterr().err == "", "the same configuration replaces nothing"


@pytest.mark.parametrize(
    "trace", ["batches/batch_000000.msgpack", "trained/step_000000.json", "checkpoints/step_000001", "metrics.jsonl"]
)
def test_what_was_trained_or_played_is_never_begun_anew(tmp_path: Path, trace: str) -> None:
    directory = tmp_path / "run"
    folder = begin_run(config(directory, model={"path": "mdoel"}))
    write_json(folder.root / trace, {})
    for changed in ({}, {"run": {"directory": str(directory), "existing": "resume"}}):
        with pytest.raises(PrlError):
            begin_run(config(directory, **changed))
    assert (folder.root / trace).exists()


@pytest.mark.parametrize("part", ["orchestrator", "trainer"])
def test_a_folder_is_not_begun_anew_under_a_living_process(tmp_path: Path, part: str) -> None:
    """A warm-up that runs has handed over nothing yet, and must not lose its folder to a second start."""
    folder = attach_run(config(tmp_path / "run"))
    with folder.owned(part), pytest.raises(ConfigError, match=r"these differ: trainer\.seq_len"):
        attach_run(config(tmp_path / "run", trainer={"seq_len": 64}))
    assert load_config(RLConfig, folder.config).trainer.seq_len == 2048


def test_a_folder_is_not_begun_anew_where_nobody_can_tell_who_is_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system without locks: a trainer of another machine may be warming up."""
    folder = attach_run(config(tmp_path / "run"))

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("prl_train.run.owner.fcntl.flock", refuse)
    with pytest.raises(ConfigError, match=r"these differ: trainer\.seq_len"):
        attach_run(config(tmp_path / "run", trainer={"seq_len": 64}))
    assert load_config(RLConfig, folder.config).trainer.seq_len == 2048
    replaced = {"directory": str(tmp_path / "run"), "existing": "overwrite"}
    begin_run(config(tmp_path / "run", run=replaced, trainer={"seq_len": 64}))
    assert load_config(RLConfig, folder.config).trainer.seq_len == 64


def test_a_failure_is_not_told_in_a_folder_that_is_none_yet(tmp_path: Path) -> None:
    """The second of two processes gave up waiting for the first, and left a folder that no start would take."""
    settings = config(tmp_path / "run")
    with pytest.raises(PeerError), _told(RunFolder(tmp_path / "run"), settings, "trainer", Place(rank=1, size=2)):
        raise PeerError("the main process did not come", where="a test", next_step="none")
    assert begin_run(settings).is_run()


def test_a_log_beside_a_run_does_not_keep_it_from_being_replaced(tmp_path: Path) -> None:
    """`prl rl ... > runs/a/log.txt`: all was removed, and then the folder was none of ours."""
    directory = tmp_path / "run"
    folder = begun(config(directory))
    (directory / "log.txt").write_text("mine")
    begin_run(config(directory, run={"directory": str(directory), "existing": "overwrite"}))
    assert (directory / "log.txt").read_text() == "mine"
    assert folder.batch_steps() == []


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


OPTIONS = """\
renderer = "qwen3"
sinks = ["console"]
[model]
path = "m"
[renderer_options]
enable_thinkin = false
[client_mode_options]
priorty = 1
[executor_options]
x = 1
[engine.options]
max_batchsize = 2
[sink_options.console]
color = true
[[environments]]
name = "reverse-text"
[[environments]]
name = "number-guessing"
[environments.options]
low = 9
[[filters]]
name = "repetition"
options = { maximum = 3 }
[[evaluations]]
name = "exam"
environment = "reverse-text"
options = { word = 3 }
[trainer.loss]
name = "grpo"
clip = 2
"""
WRONG = {
    ("renderer_options", "enable_thinkin"): 6,
    ("client_mode_options", "priorty"): 8,
    ("executor_options", "x"): 10,
    ("engine", "options"): 12,
    ("sink_options", "console"): 14,
    ("environments", 1, "options"): 19,
    ("filters", 0, "options"): 23,
    ("evaluations", 0, "options"): 27,
    ("trainer", "loss", "clip"): 30,
}
"""Each wrong key of `OPTIONS`, or its section, and the line that an error about it must name."""


def without(data: Any, key: tuple[str | int, ...]) -> None:
    for part in key[:-1]:
        data = data[part]
    del data[key[-1]]


@pytest.mark.parametrize(("key", "line"), WRONG.items(), ids=lambda value: str(value))
def test_a_wrong_option_of_any_plugin_is_found_where_it_stands(
    tmp_path: Path, key: tuple[str | int, ...], line: int
) -> None:
    """`unknown key 'x'` in a file of two hundred lines and nine plugins sends people searching."""
    path = tmp_path / "run.toml"
    path.write_text(OPTIONS)
    read = read_sources(RLConfig, path, environment={})
    for other in WRONG:
        if other != key:
            without(read.data, other)
    checked = read.load(RLConfig)
    with pytest.raises(ConfigError) as caught, read.telling():
        check_workers(checked, check_names(checked))
    assert caught.value.where.endswith(f", {path}:{line}")


def test_an_option_is_found_in_the_variable_or_flag_that_set_it(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('[model]\npath = "m"\n[[environments]]\nname = "reverse-text"\n')
    for environment, flags, place in [
        ({"PRL_ENGINE__OPTIONS__THREDS": "2"}, [], "environment variable PRL_ENGINE__OPTIONS__THREDS"),
        ({}, ["environments.0.options.word=2"], "command line 'environments.0.options.word=2'"),
    ]:
        read = read_sources(RLConfig, path, flags, environment=environment)
        with pytest.raises(ConfigError) as caught, read.telling():
            check_names(read.load(RLConfig))
        assert caught.value.where.endswith(f", {place}")


def test_a_section_is_told_with_all_that_set_it_and_a_key_with_what_set_it_last(tmp_path: Path) -> None:
    """The fault of `high = 1` in the file was put down to a flag that set another option of the section."""
    path = tmp_path / "run.toml"
    path.write_text("[engine]\nurl = 'http://a'\n[engine.options]\nhigh = 1\n")
    flags = ["engine.options.low=2", "sampling.seed=1", "engine.url=http://b"]
    read = read_sources(RLConfig, path, flags, environment={"PRL_ENGINE__URL": "http://c"})
    assert read.places(("engine", "options")) == [f"{path}:3", "command line 'engine.options.low=2'"]
    assert read.places(("engine", "options", "high")) == [f"{path}:4"]
    assert read.places(("engine", "url")) == ["command line 'engine.url=http://b'"]
    assert read.places(("sampling",)) == ["command line 'sampling.seed=1'"]


def test_the_quickstart_file_is_valid_and_its_names_are_installed() -> None:
    checked = load_config(RLConfig, QUICKSTART)
    use_plugins(checked)
    assert [entry.environment.name for entry in check_names(checked).environments] == ["number-guessing"]
