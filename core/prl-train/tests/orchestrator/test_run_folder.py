"""The run folder: nothing half-written is taken for whole, and nothing of others is touched."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from io import FileIO
from pathlib import Path

import numpy as np
import pytest

from prl.types import TrainingSample
from prl_train.commands.told import tell_stop
from prl_train.errors import CheckpointError
from prl_train.run import (
    PeerError,
    Progress,
    RunError,
    RunFolder,
    StepBatch,
    StorageError,
    decode_batch,
    encode_batch,
    owner,
    read_json,
)
from prl_train.run.files import create_exclusively, write_bytes
from prl_train.run.metrics import append_metrics, read_metrics
from prl_train.run.status import StatusBoard
from prl_train.storage import write_sealed


def sample(**fields: object) -> TrainingSample:
    return TrainingSample(
        prompt_ids=[1, 2],
        completion_ids=[3, 4],
        completion_mask=[True, False],
        completion_logprobs=[-0.25, 0.0],
        temperatures=[1.0, 1.0],
        advantage=0.5,
        **fields,  # type: ignore[arg-type]
    )


def test_a_batch_survives_the_way_to_the_trainer() -> None:
    progress = Progress(next_group=7, pending=[5, 6], flat_batches=1, first_reward=0.25)
    batch = StepBatch(
        step=3, samples=[sample(), sample(teacher_logprobs=[0.0] * 4)], metrics={"a": 1.0}, progress=progress
    )
    assert decode_batch(encode_batch(batch)) == batch


def test_arrays_travel_with_shape_and_type() -> None:
    routed = np.arange(24, dtype=np.int16).reshape(4, 3, 2)
    batch = StepBatch(step=0, samples=[sample(routed_experts=routed)], metrics={}, progress=Progress())
    back = decode_batch(encode_batch(batch)).samples[0].routed_experts
    assert back.dtype == np.int16
    assert np.array_equal(back, routed)


def test_a_damaged_batch_is_an_error_with_a_place() -> None:
    whole = encode_batch(StepBatch(step=0, samples=[sample()], metrics={}, progress=Progress()))
    with pytest.raises(RunError, match="not a batch file") as caught:
        decode_batch(whole[:-3], where="batch_000000.msgpack")
    assert caught.value.where == "batch_000000.msgpack"


def test_a_batch_of_another_format_is_refused() -> None:
    other = StepBatch(step=0, samples=[], metrics={}, progress=Progress(), format=99)
    with pytest.raises(RunError, match="batch format 99"):
        decode_batch(encode_batch(other))


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_bytes(path, b"old")

    def fail(self: Path, target: Path) -> Path:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(StorageError, match="file cannot be written: disk full"):
        write_bytes(path, b"new")
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
    assert path.read_bytes() == b"old"


def test_only_the_first_of_two_processes_creates_a_file(tmp_path: Path) -> None:
    assert create_exclusively(tmp_path / "plugins.json", b"mine")
    assert not create_exclusively(tmp_path / "plugins.json", b"theirs")
    assert (tmp_path / "plugins.json").read_bytes() == b"mine"
    assert len(list(tmp_path.iterdir())) == 1


def test_damaged_json_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "latest.json").write_text("{")
    with pytest.raises(RunError, match=r"latest\.json is not JSON"):
        read_json(tmp_path / "latest.json")
    assert read_json(tmp_path / "absent.json") is None


def test_a_metrics_line_cut_by_a_crash_is_dropped_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    append_metrics(path, 0, {"reward": 0.5})
    with path.open("a") as file:
        file.write('{"step": 1, "rew')
    assert [row["step"] for row in read_metrics(path)] == [0]
    append_metrics(path, 1, {"reward": 0.75})
    assert read_metrics(path) == [{"step": 0, "reward": 0.5}, {"step": 1, "reward": 0.75}]


@pytest.mark.parametrize("half", [0, 1, 4095, 4096, 4097, 9000])
def test_a_half_row_of_any_length_is_cut_off(tmp_path: Path, half: int) -> None:
    """The end of the file is searched backwards, block by block; a file of nothing else is emptied."""
    path = tmp_path / "metrics.jsonl"
    for rows in ([], [{"step": 0, "reward": 0.5}]):
        path.write_text("".join(json.dumps(row) + "\n" for row in rows) + "x" * half)
        append_metrics(path, 1, {"reward": 0.75})
        assert read_metrics(path) == [*rows, {"step": 1, "reward": 0.75}]


def test_a_row_of_metrics_does_not_cost_more_the_longer_the_run(tmp_path: Path) -> None:
    """A run of 100,000 steps would read 200 MB at each of them."""
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 0}\n' * 1_000_000)
    began = time.process_time()
    for step in range(50):
        append_metrics(path, step, {"reward": 0.5})
    assert time.process_time() - began < 1.0


def test_a_run_killed_at_its_very_first_file_may_begin_again(tmp_path: Path) -> None:
    (tmp_path / ".run.json.77.abcd.tmp").write_text("{")
    RunFolder(tmp_path).claim()
    assert RunFolder(tmp_path).is_run()


def test_a_metric_named_step_does_not_overwrite_the_runs_step(tmp_path: Path) -> None:
    append_metrics(tmp_path / "metrics.jsonl", 5, {"step": 3.0, "loss": 1.0})
    assert read_metrics(tmp_path / "metrics.jsonl") == [{"step": 5, "loss": 1.0}]


def test_a_folder_with_other_files_is_never_taken_over(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(RunError, match="is not empty and is not a run folder"):
        RunFolder(tmp_path).claim()
    RunFolder(tmp_path).clear()
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_clearing_a_run_leaves_foreign_files(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.claim()
    folder.write_batch(StepBatch(step=0, samples=[], metrics={}, progress=Progress()))
    (tmp_path / "notes.txt").write_text("keep me")
    folder.clear()
    folder.claim()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["notes.txt", "run.json"]


def test_a_run_that_is_running_is_not_cleared(tmp_path: Path) -> None:
    """`--overwrite` in the wrong terminal would take the folder from under a run."""
    folder = RunFolder(tmp_path)
    folder.claim()
    folder.metrics.write_text("{}\n")
    with (
        RunFolder(tmp_path).owned("trainer"),
        pytest.raises(RunError, match="another trainer of this run is running"),
    ):
        folder.clear()
    assert folder.metrics.is_file()
    folder.clear()
    assert not folder.metrics.exists()


def test_half_of_a_cleared_run_is_not_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder(tmp_path)
    folder.claim()
    for path in (folder.batches / "batch_000000.msgpack", folder.weights / "latest.json", folder.metrics):
        write_bytes(path, b"old")

    class Killed(BaseException):
        pass

    def die(path: Path, **_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("prl_train.run.folder.shutil.rmtree", die)
        with pytest.raises(Killed):
            folder.clear()
    folder.claim()
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_what_a_killed_process_left_of_the_shared_files_is_swept_and_nothing_else(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for name in (".run.json.7.ab.tmp", ".config.toml.7.ab.tmp", ".plugins.json.7.ab.tmp"):
        (tmp_path / name).write_text("{")
        if name.startswith(".run"):
            folder.claim()
    (tmp_path / ".model.x1y2" / "model").mkdir(parents=True)
    (tmp_path / ".notes.mine").mkdir()
    (tmp_path / ".progress.json.7.ab.tmp").write_text("the orchestrator's own")
    with folder.shared():
        assert sorted(path.name for path in tmp_path.iterdir()) == [
            ".notes.mine",
            ".progress.json.7.ab.tmp",
            "run.json",
        ]


def test_only_one_process_at_a_time_makes_what_all_share(tmp_path: Path) -> None:
    """Another one's half-written file would be swept away."""
    code = "import sys; from pathlib import Path; from prl_train.run import RunFolder\n"
    code += "with RunFolder(Path(sys.argv[1])).shared(): print('in', flush=True); sys.stdin.read(1)\n"
    code += "print('out', flush=True)"
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "in\n"
    half = tmp_path / ".config.toml.7.ab.tmp"
    half.write_text("being written")
    seen: list[bool] = []

    def come() -> None:
        with RunFolder(tmp_path).shared():
            seen.append(half.exists())

    other = threading.Thread(target=come)
    other.start()
    other.join(0.1)
    assert seen == []
    assert half.exists()
    child.communicate("x", timeout=60)
    other.join(60)
    assert seen == [False]


def test_a_status_of_an_earlier_start_is_history(tmp_path: Path) -> None:
    board = StatusBoard(tmp_path)
    board.set("trainer", "failed", "no weights")
    with pytest.raises(PeerError, match="the trainer failed: no weights"):
        board.raise_if_failed("trainer")
    later = StatusBoard(tmp_path)
    later.began += 1
    later.raise_if_failed("trainer")
    assert later.get("trainer") is None


def test_a_row_of_metrics_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    """A run whose metrics are lost silently cannot be watched."""
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(StorageError, match=r"metrics.jsonl cannot be written: Is a directory"):
        append_metrics(tmp_path / "metrics.jsonl", 0, {})


def test_only_one_process_is_a_runs_orchestrator(tmp_path: Path) -> None:
    """Two would make one batch out of different rollouts."""
    first, second = RunFolder(tmp_path), RunFolder(tmp_path)
    with first.owned("orchestrator"):
        with second.owned("trainer"):
            pass
        with pytest.raises(RunError, match=rf"another orchestrator of this run is running: process {os.getpid()}"):
            second.owned("orchestrator").__enter__()
    with second.owned("orchestrator"):
        pass


def test_a_killed_process_may_be_followed_by_another_at_once(tmp_path: Path) -> None:
    code = "import sys, time; from pathlib import Path; from prl_train.run import RunFolder\n"
    code += "with RunFolder(Path(sys.argv[1])).owned('trainer'): print('mine', flush=True); time.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "mine\n"
    with pytest.raises(RunError, match=f"process {child.pid}"):
        RunFolder(tmp_path).owned("trainer").__enter__()
    child.kill()
    child.wait(10)
    child.stdout.close()
    with RunFolder(tmp_path).owned("trainer"):
        pass


def test_a_forked_child_that_outlives_a_killed_process_keeps_nobody_out(tmp_path: Path) -> None:
    """Pools that environments fork are left behind by a kill; the run could not be resumed before they are gone."""
    code = "import os, sys, time; from pathlib import Path; from prl_train.run import RunFolder\n"
    code += "with RunFolder(Path(sys.argv[1])).owned('trainer'):\n"
    code += "    child = os.fork()\n    if child: print(child, flush=True)\n    time.sleep(60)"
    parent = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    try:
        with pytest.raises(RunError, match=f"process {parent.pid}"):
            RunFolder(tmp_path).owned("trainer").__enter__()
        parent.kill()
        parent.wait(10)
        with RunFolder(tmp_path).owned("trainer"):
            os.kill(child, 0)  # which is still there
    finally:
        os.kill(child, signal.SIGKILL)
        parent.stdout.close()


def test_what_a_killed_process_left_half_written_is_swept(tmp_path: Path) -> None:
    """Half a checkpoint for each kill would fill the disk in a week."""
    folder = RunFolder(tmp_path)
    half = folder.checkpoints / ".step_000002.ab12"
    half.mkdir(parents=True)
    (half / "tensors").write_bytes(b"half")
    aside = folder.checkpoints / ".step_000004.old.cd34" / "step_000004"
    aside.mkdir(parents=True)
    folder.trained.mkdir()
    (folder.trained / ".step_000001.json.7.ab.tmp").write_text("{")
    folder.batches.mkdir()
    (folder.batches / ".batch_000001.msgpack.7.ab.tmp").write_bytes(b"half")
    for part in ("trainer", "orchestrator"):
        (folder.transfer / part).mkdir(parents=True)
        (folder.transfer / part / ".word.json.7.ab.tmp").write_text("{")
    with folder.owned("trainer"):
        assert [path.name for path in sorted(folder.checkpoints.iterdir())] == ["step_000004"], "it was moved aside"
        assert list(folder.trained.iterdir()) == []
        assert len(list(folder.batches.iterdir())) == 1, "the orchestrator may be writing it"
        assert [path.parent.name for path in folder.transfer.rglob("*.tmp")] == ["orchestrator"]
    with folder.owned("orchestrator"):
        assert list(folder.batches.iterdir()) == []
        assert list(folder.transfer.rglob("*.tmp")) == []


def test_a_batch_is_trained_again_only_if_it_is_the_same(tmp_path: Path) -> None:
    """A resumed trainer repeats the steps after its checkpoint; other batches in their place would be trained twice."""
    folder = RunFolder(tmp_path)
    folder.write_batch(StepBatch(step=0, samples=[], metrics={"reward": 1.0}, progress=Progress()))
    folder.read_batch(0)
    folder.write_trained(0, {"loss": 0.5})
    digest = hashlib.sha256(folder.batch_path(0).read_bytes()).hexdigest()
    assert folder.trained_batch(0) == digest
    assert folder.read_trained(0) == {"loss": 0.5}
    folder.read_batch(0)
    folder.write_trained(0, {"loss": 0.25})
    assert (folder.trained_batch(0), folder.read_trained(0)) == (digest, {"loss": 0.25})
    folder.write_batch(StepBatch(step=0, samples=[], metrics={"reward": 2.0}, progress=Progress()))
    folder.read_batch(0)
    with pytest.raises(RunError, match="the batch of step 0 is not the one that was trained before"):
        folder.write_trained(0, {"loss": 0.1})


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
)
def test_a_directory_that_the_disk_has_no_room_for_leaves_the_old_one(tmp_path: Path, error: Exception) -> None:
    """Writers in Rust tell of a full disk in a text alone."""

    def whole(work: Path) -> None:
        (work / "data").write_text("old")

    def full(work: Path) -> None:
        (work / "data").write_text("ne")
        raise error

    write_sealed(tmp_path / "step", "marker.json", {}, whole)
    with pytest.raises(CheckpointError, match="step cannot be written: No space left on device"):
        write_sealed(tmp_path / "step", "marker.json", {}, full)
    assert [path.name for path in tmp_path.iterdir()] == ["step"]
    assert (tmp_path / "step" / "data").read_text() == "old"


def test_another_error_while_writing_keeps_its_name(tmp_path: Path) -> None:
    def wrong(work: Path) -> None:
        raise ValueError("not a tensor")

    with pytest.raises(ValueError, match="not a tensor"):
        write_sealed(tmp_path / "step", "marker.json", {}, wrong)


def test_a_directory_in_a_place_that_cannot_be_written_is_told_in_three_parts(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("a file is in the way")
    with pytest.raises(CheckpointError, match="step cannot be written: File exists") as told:
        write_sealed(tmp_path / "checkpoints" / "step", "marker.json", {}, lambda work: None)
    assert told.value.where == str(tmp_path / "checkpoints" / "step")
    assert "free space" in told.value.next_step


def test_a_lock_that_went_with_an_earlier_run_holds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opened before another process removed the file, it would let two trainers run beside each other."""
    path, real = tmp_path / "trainer.lock", owner._open
    opened: list[int] = []

    def open_and_lose(wanted: Path) -> FileIO:
        file = real(wanted)
        opened.append(file.fileno())
        if len(opened) == 1:
            wanted.unlink()
        return file

    monkeypatch.setattr(owner, "_open", open_and_lose)
    with owner.hold(path, "trainer"):
        monkeypatch.setattr(owner, "_open", real)
        with pytest.raises(RunError, match="another trainer of this run is running"), owner.hold(path, "trainer"):
            pass
    assert len(opened) == 2


def test_a_folder_that_cannot_be_made_is_told_with_its_key(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    folder = RunFolder(tmp_path / "file" / "run")
    with pytest.raises(RunError, match="the run folder cannot be made: Not a directory") as caught, folder.shared():
        pass
    assert caught.value.keys == (("run", "directory"),)


def test_a_stopped_run_says_how_it_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), tell_stop(tmp_path, "rl", "-c", "my run.toml", "--resume"):
        raise KeyboardInterrupt
    told = capsys.readouterr().err
    assert told == f"prl: stopped; what {tmp_path} holds is whole. Go on with: prl rl -c 'my run.toml' --resume\n"
