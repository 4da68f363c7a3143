"""Each sink with the real program behind it: what was measured must be found there, once, also after a resume."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from prl.contracts import Sink
from prl.plugin import create
from prl.types import PluginError

VALUES = {"reward": 0.5, "breaks": 2.0, "breaks/truncation": 2.0, "env/game/reward": 0.25, "eval/hard/reward": 0.75}


def play(sink: Any, run_dir: Path, *steps: int) -> None:
    assert isinstance(sink, Sink)
    sink.open(run_dir, {"orchestrator": {"steps": 4}})
    for step in steps:
        sink.metrics(step, VALUES | {"reward": step / 10})
        sink.rollouts(step, [])
    sink.close()


def test_prometheus_serves_the_newest_step_with_environments_as_labels(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    sink = create("sink", "prometheus", port=0, labels={"run": "a"})
    sink.open(tmp_path, {})
    sink.metrics(0, VALUES)
    sink.metrics(3, VALUES | {"reward": 0.9})
    with urllib.request.urlopen(f"http://127.0.0.1:{sink.port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    sink.close()
    assert 'prl_reward{run="a"} 0.9' in lines
    assert 'prl_env_reward{environment="game",run="a"} 0.25' in lines
    assert 'prl_eval_reward{evaluation="hard",run="a"} 0.75' in lines
    assert 'prl_breaks_by_cause{cause="truncation",run="a"} 2.0' in lines
    assert 'prl_breaks{run="a"} 2.0' in lines
    assert 'prl_step{run="a"} 3.0' in lines
    with pytest.raises(OSError):
        urllib.request.urlopen(f"http://127.0.0.1:{sink.port}/metrics", timeout=2)


def test_prometheus_writes_a_textfile_and_needs_one_of_both(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    play(create("sink", "prometheus", textfile=str(tmp_path / "prl.prom")), tmp_path, 1, 2)
    assert "prl_reward 0.2" in (tmp_path / "prl.prom").read_text(encoding="utf-8").splitlines()
    with pytest.raises(Exception, match="give a port, a textfile, or both"):
        create("sink", "prometheus")


def test_tensorboard_files_of_both_halves_of_a_resumed_run_hold_every_step(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    for steps in ((0, 1), (2, 3)):
        play(create("sink", "tensorboard"), tmp_path, *steps)
    assert scalars(tmp_path / "tensorboard", "reward") == [(0, 0.0), (1, 0.1), (2, 0.2), (3, 0.3)]
    assert [value for _, value in scalars(tmp_path / "tensorboard", "env/game/reward")] == [0.25] * 4


def scalars(directory: Path, tag: str) -> list[tuple[int, float]]:
    """Read event files without tensorboard: records of length, checksum, message, checksum."""
    from tensorboardX.proto.event_pb2 import Event

    found = []
    for path in directory.iterdir():
        data, at = path.read_bytes(), 0
        while at < len(data):
            size = int.from_bytes(data[at : at + 8], "little")
            event = Event.FromString(data[at + 12 : at + 12 + size])
            found += [(event.step, round(v.simple_value, 6)) for v in event.summary.value if v.tag == tag]
            at += 16 + size
    return sorted(found)


def test_trackio_goes_on_in_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    pytest.importorskip("trackio")
    from trackio import utils
    from trackio.sqlite_storage import SQLiteStorage

    monkeypatch.setattr(utils, "TRACKIO_DIR", tmp_path / "trackio")
    monkeypatch.setattr("trackio.sqlite_storage.TRACKIO_DIR", tmp_path / "trackio")
    for steps in ((0, 1), (2,)):
        play(create("sink", "trackio", project="games"), tmp_path / "run", *steps)
    (name,) = SQLiteStorage.get_runs("games")
    rows = SQLiteStorage.get_logs("games", name)
    assert [(row["step"], row["reward"], row["env/game/reward"]) for row in rows] == [
        (0, 0.0, 0.25),
        (1, 0.1, 0.25),
        (2, 0.2, 0.25),
    ]


@pytest.fixture
def wandb() -> Iterator[Any]:
    """wandb, whose helper process ends with the test and not with the whole session."""
    module = pytest.importorskip("wandb")
    yield module
    module.teardown()


def test_wandb_keeps_one_id_for_one_run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wandb: Any) -> None:
    for name in ("WANDB_API_KEY", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    for steps in ((0, 1), (2,)):
        play(create("sink", "wandb", mode="offline", project="games"), tmp_path, *steps)
    files = sorted((tmp_path / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len(files) == 2
    assert len({path.name for path in files}) == 1
    written = files[0].read_bytes()
    assert b"env/game/reward" in written
    assert b"games" in written


def test_a_missing_program_is_named_with_the_command_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prl.plugin.targets._is_installed", lambda module: False)
    with pytest.raises(PluginError, match=r"needs wandb, which cannot be imported") as caught:
        create("sink", "wandb")
    assert caught.value.next_step == "Run: pip install 'prl-sinks[wandb]'"
