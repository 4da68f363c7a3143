"""A run may die before any change to its folder, again and again: in the end it is the run that never died.

Real parts: engine, trainer, checkpoints, weights as files and over a process group. Each child is forked from a process
that has imported all, so that dying costs a quarter of a second.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fixtures.crash_points import KILLED
from fixtures.forks import Forks

from prl_train.run import RunFolder, decode_batch
from prl_train.run.metrics import is_evaluation, read_metrics
from prl_train.storage import is_sealed
from prl_train.trainer.checkpoint import CHECKPOINT_MARKER, latest_checkpoint
from prl_train.trainer.weights import WEIGHTS_MARKER

pytestmark = pytest.mark.heavy

AT_ONCE = 9  # how often one run dies; the moments of one are far apart
TIMED = ("time/", "throughput/", "event_loop", "seconds", "tokens_per_second", "memory", "eval/")
RL = """
renderer = "qwen3"
sinks = []
[renderer_options]
thinking_retention = "all"
[run]
directory = "{directory}"
[model]
path = "{model}"
[engine.options]
dtype = "float32"
threads = 1
max_batch_size = 1
[[environments]]
name = "talk"
options = { pause = 0.0 }
[[evaluations]]
name = "exam"
environment = "talk"
options = { pause = 0.0 }
every = 2
examples = 1
samples_per_example = 1
[sampling]
max_tokens = 3
[orchestrator]
steps = 5
group_size = 2
groups_per_step = 1
max_async_level = 0
max_concurrency = 1
truncated_turn = "continue"
[trainer]
dtype = "float32"
threads = 1
seq_len = 256
lr = 3e-3
warmup_steps = 0
checkpoint_every = 2
keep_checkpoints = 1
"""
SENT = 'weight_transfer = "broadcast"\n[trainer.transfer]\nseconds = 10.0\n'
SFT = """
model = "{model}"
renderer = "qwen3"
directory = "{directory}"
steps = 4
[data]
path = "{rows}"
[trainer]
seq_len = 64
threads = 1
checkpoint_every = 1
keep_checkpoints = 2
"""


class Runs:
    """Runs of one configuration, each in a folder of its own."""

    def __init__(self, forks: Forks, site: Path, root: Path, command: str, text: str) -> None:
        self.forks, self.site, self.root, self.command, self.text = forks, site, root, command, text

    def folder(self, name: str) -> Path:
        return self.root / name

    def run(self, name: str, at: list[str] | None = None, *, resume: bool) -> int:
        config = self.root / f"{name}.toml"
        config.write_text(self.text.replace("{directory}", str(self.folder(name))), encoding="utf-8")
        words = [self.command, "-c", str(config), *(["--resume"] if resume else [])]
        arguments = (str(self.folder(name)), at, str(self.root / f"{name}.seen"), words)
        env = {"PYTHONPATH": str(self.site)}
        return self.forks.start("fixtures.crash_points:run", *arguments, log=self.log(name), env=env).wait(120)

    def log(self, name: str) -> Path:
        return self.root / f"{name}.log"

    def whole(self) -> list[list[str]]:
        """Run to the end; return what can be died before, in order."""
        assert self.run("whole", resume=False) == 0, self.log("whole").read_text()
        moments: list[list[str]] = json.loads((self.root / "whole.seen").read_text())
        return moments

    def die(self, moments: list[list[str]], look: Callable[[Path], Any]) -> None:
        """Die at all moments, some in each run; what is left at the end must look as the whole run does."""
        expected, died = look(self.folder("whole")), []
        runs = -(-len(moments) // AT_ONCE)
        for number in range(runs):
            name, resume = f"died-{number}", False
            for at in moments[number::runs]:
                code = self.run(name, at, resume=resume)
                resume = True
                assert code in (KILLED, 0), f"before {at} of {moments[number::runs]}\n{self.log(name).read_text()}"
                died += [at] if code == KILLED else []
            assert self.run(name, resume=True) == 0, f"{moments[number::runs]}\n{self.log(name).read_text()}"
            check_no_leftovers(self.folder(name))
            assert look(self.folder(name)) == expected, moments[number::runs]
        missed = [at for at in moments if at not in died]
        assert len(missed) <= len(moments) // 8, missed


def check_no_leftovers(root: Path) -> None:
    left = [path.relative_to(root).as_posix() for path in root.rglob(".*")]
    assert [name for name in left if not name.endswith("/tensors/.metadata")] == [], "of those that died"
    for parent, marker in (("weights", WEIGHTS_MARKER), ("checkpoints", CHECKPOINT_MARKER)):
        for path in (root / parent).iterdir():
            assert path.is_file() or is_sealed(path, marker), f"half of {path}"


def figures(row: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in row.items() if not any(part in name for part in TIMED)}


def look_at_run(root: Path) -> dict[str, Any]:
    folder = RunFolder(root)
    rows = read_metrics(folder.metrics)
    weights, checkpoint = folder.latest_weights(), folder.latest_checkpoint()
    assert weights is not None
    assert checkpoint is not None
    steps = folder.batch_steps()
    assert [folder.read_batch(step) is not None and folder.trained_batch(step) for step in steps] == [
        folder._digests[step] for step in steps
    ]
    told = [row["eval/exam/step"] for row in rows if "eval/exam/step" in row]
    assert sorted(told) == folder.evaluated_steps("exam"), "each evaluation is told once"
    return {
        "steps": [figures(row) for row in rows if not is_evaluation(row)],
        "rollouts": [folder.rollout_path(step).read_bytes() for step in folder.rollout_steps()],
        "last batch": decode_batch(folder.batch_path(steps[-1]).read_bytes()).samples,
        "weights": [weights[0], (Path(weights[1]) / "model.safetensors").read_bytes()],
        "checkpoint": checkpoint[0],
        "files": sorted({path.name for path in root.iterdir()}),
    }


def look_at_supervised(root: Path) -> dict[str, Any]:
    newest = latest_checkpoint(root / "checkpoints")
    assert newest is not None
    return {
        "steps": [figures(row) for row in read_metrics(root / "metrics.jsonl")],
        "weights": (root / "weights/version_000004/model.safetensors").read_bytes(),
        "checkpoint": newest.name,
        "files": sorted({path.name for path in root.iterdir()}),
    }


def test_a_run_dies_before_every_change_to_its_folder(forks: Forks, site: Path, model: Path, tmp_path: Path) -> None:
    text = RL.replace("{model}", str(model))
    runs = Runs(forks, site, tmp_path, "rl", text)
    moments = runs.whole()
    assert len(moments) > 50
    assert len({row["reward"] for row in look_at_run(runs.folder("whole"))["steps"]}) > 1
    runs.die(moments, look_at_run)


def test_a_run_that_sends_its_weights_dies_before_every_word_on_a_transfer(
    forks: Forks, site: Path, model: Path, tmp_path: Path
) -> None:
    text = RL.replace("{model}", str(model)) + SENT
    runs = Runs(forks, site, tmp_path, "rl", text)
    moments = [at for at in runs.whole() if at[1].startswith("transfer/")]
    assert len(moments) > 8
    runs.die(moments, look_at_run)


def test_a_supervised_run_dies_before_every_change_to_its_folder(
    forks: Forks, site: Path, model: Path, tmp_path: Path
) -> None:
    rows = [
        {"messages": [{"role": "user", "content": f"Say {n}."}, {"role": "assistant", "content": f"this was {n}"}]}
        for n in range(12)
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    text = SFT.replace("{model}", str(model)).replace("{rows}", str(tmp_path / "rows.jsonl"))
    runs = Runs(forks, site, tmp_path, "sft", text)
    moments = runs.whole()
    assert len(moments) > 15
    runs.die(moments, look_at_supervised)
