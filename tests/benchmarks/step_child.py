"""Measure training steps in a process of its own: `python step_child.py JOB` prints one line of JSON.

JOB is JSON: `task`, `names` of contestants, `repetitions`, `model`, `size`, `dtype`, `device`. Contestants take turns
on the samples of the same step. With one contestant alone, `peak` is that contestant's.
"""

from __future__ import annotations

import gc
import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import torch
from step_contestants import CONTESTANTS, Outcome, Setting, Step, quiet
from step_work import Sample, Size, step_samples

_RSS_UNIT = 1 if sys.platform == "darwin" else 1024


def measure(job: dict[str, Any]) -> dict[str, Any]:
    """Run the job; the first step of each contestant warms up and says whether all do the same."""
    setting = Setting(job["model"], Size(**job["size"]), job["dtype"], job["device"])
    if setting.device == "cpu":
        torch.set_num_threads(1)
    steps = {name: CONTESTANTS[job["task"]][name](setting) for name in job["names"]}
    resident = _resident()
    outcomes = {name: _step(step, step_samples(setting.size, 0), setting.device)[1] for name, step in steps.items()}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    tokens = []
    for repetition in range(1, job["repetitions"] + 1):
        samples = step_samples(setting.size, repetition)
        tokens.append(sum(map(len, samples)))
        turn = list(steps.items())
        shift = repetition % len(turn)
        for name, step in turn[shift:] + turn[:shift]:
            seconds[name].append(_step(step, samples, setting.device)[0])
    peak = _peak(setting.device)
    return {"outcomes": outcomes, "seconds": seconds, "tokens": tokens, "peak": peak, "resident": resident}


def _step(step: Step, samples: list[Sample], device: str) -> tuple[float, Outcome]:
    """Return the step's seconds: of CPU time, or on a GPU until it has nothing left to do."""
    gc.collect()
    if device == "cpu":
        begin = time.process_time()
        outcome = step(samples)
        return time.process_time() - begin, outcome
    torch.cuda.synchronize()
    begin = time.perf_counter()
    outcome = step(samples)
    torch.cuda.synchronize()
    return time.perf_counter() - begin, outcome


def _resident() -> int:
    """Return the bytes of this process now; 0 where the system does not say."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * resource.getpagesize() if statm.exists() else 0


def _peak(device: str) -> int:
    if device == "cpu":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_UNIT
    return torch.cuda.max_memory_allocated()


if __name__ == "__main__":
    quiet()
    print(json.dumps(measure(json.loads(sys.argv[1]))))
