"""A training step: prl's trainer against TRL's trainers and a plain transformers loop, on the same model and samples.

Every comparison runs in a process of its own, contestants in turn; on a CPU with one thread and CPU time. The peak of
memory is that of one more process for each contestant. Losses and gradient norms of a first step must agree.

TRL 1.16 has a head that works in tiles and is made for GPUs: on a CPU it also scores prompts and padding, and
multiplies in float32. The plain loop, with all logits in memory, is therefore the faster of the two there.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from step_work import ON_GPU, QUICK, Size, make_model

_CHILD = Path(__file__).with_name("step_child.py")
_TITLES = {"grpo": "clipped policy gradient (GRPO)", "sft": "supervised cross-entropy"}
_TOLERANCE = {"float32": 1e-4, "bfloat16": 5e-3}


@dataclass(frozen=True)
class Machine:
    """Where steps run: "cpu" or "cuda", in words, and with which precisions."""

    device: str
    words: str
    dtypes: tuple[str, ...]


def train_step_table(repetitions: int, *, device: str = "auto", quick: bool = False) -> Iterator[str]:
    """Yield the lines of the table. Raise `SystemExit` where contestants do not do the same."""
    machine = _machine(device)
    size = QUICK if quick else ON_GPU if machine.device == "cuda" else Size()
    with tempfile.TemporaryDirectory() as folder:
        parameters = make_model(Path(folder), size)
        yield f"  on {machine.words}; torch dtypes: {', '.join(machine.dtypes)}"
        yield (
            f"  Qwen3 of {parameters / 1e6:.1f} M parameters; a step has {size.samples} samples of {size.shortest} to "
            f"{size.longest} tokens, a micro-batch room for {size.room}"
        )
        for task in _TITLES:
            for dtype in machine.dtypes:
                common = {"task": task, "model": folder, "size": asdict(size), "dtype": dtype, "device": machine.device}
                yield f"  {_TITLES[task]}, {dtype}"
                yield from _comparison(common, repetitions)


def _machine(device: str) -> Machine:
    import torch

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        name, version = torch.cuda.get_device_name(), torch.version.cuda
        return Machine(device, f"{name}, CUDA {version}, torch {torch.__version__}", ("float32", "bfloat16"))
    # Emulated bfloat16 products take many times as long as float32: nobody trains that way.
    has_bfloat16 = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    words = f"one thread of this CPU ({torch.backends.cpu.get_cpu_capability()}), torch {torch.__version__}"
    return Machine(device, words, ("float32", "bfloat16") if has_bfloat16 else ("float32",))


def _comparison(common: dict[str, Any], repetitions: int) -> Iterator[str]:
    from step_contestants import CONTESTANTS

    names = list(CONTESTANTS[common["task"]])
    timed = _child(common | {"names": names, "repetitions": repetitions})
    _check_same(timed["outcomes"], _TOLERANCE[common["dtype"]])
    ours, tokens = timed["seconds"]["prl"], timed["tokens"]
    for name in names:
        alone = _child(common | {"names": [name], "repetitions": 1})
        seconds = timed["seconds"][name]
        rate = statistics.median(count / spent for count, spent in zip(tokens, seconds, strict=True))
        ratio = statistics.median(theirs / own for theirs, own in zip(seconds, ours, strict=True))
        more = "" if name == "prl" else f"  prl is {ratio:.2f}x as fast"
        peak, added = alone["peak"] / 1e6, (alone["peak"] - alone["resident"]) / 1e6
        yield f"    {name:30s} {rate:9,.0f} tokens/s  peak {peak:6,.0f} MB ({added:6,.0f} by stepping){more}"


def _check_same(outcomes: dict[str, Sequence[float]], tolerance: float) -> None:
    """Raise `SystemExit` where the loss or the gradient of somebody's first step is another than prl's."""
    for name, found in outcomes.items():
        for ours, theirs, what in zip(outcomes["prl"], found, ("loss", "gradient norm"), strict=True):
            if not abs(ours - theirs) <= tolerance * max(abs(ours), 1.0):
                raise SystemExit(f"{name} has a {what} of {theirs}, prl one of {ours}; unlike steps are not compared")


def _child(job: dict[str, Any]) -> dict[str, Any]:
    environment = os.environ | ({"OMP_NUM_THREADS": "1"} if job["device"] == "cpu" else {})
    done = subprocess.run(
        [sys.executable, str(_CHILD), json.dumps(job)], env=environment, check=False, text=True, capture_output=True
    )
    if done.returncode:
        raise SystemExit(f"the process that measures {', '.join(job['names'])} failed:\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
