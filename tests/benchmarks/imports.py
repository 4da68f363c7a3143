"""What importing costs: fresh interpreters, in turn, CPU time less that of an empty interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping

from measure import Result

EMPTY = "an empty interpreter"
PROGRAMS = {
    EMPTY: "pass",
    "renderers": "from renderers import create_renderer; from renderers.qwen3 import Qwen3Renderer",
    "prl": "from prl import create_renderer, load_tokenizer; import prl_renderer_qwen.plugin, prl_renderer_qwen.format",
}


def import_times(repetitions: int, programs: Mapping[str, str] = PROGRAMS) -> list[Result]:
    """Run every program once a repetition; the first runs, which write byte code, are not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    for repetition in range(repetitions + 1):
        for name, program in programs.items():
            spent = _cpu(program)
            if repetition:
                seconds[name].append(spent)
    return [Result(name, times) for name, times in seconds.items()]


def imports_table(repetitions: int) -> Iterator[str]:
    """Yield the lines of the table."""
    by_name = {result.name: result for result in import_times(repetitions)}
    empty = by_name.pop(EMPTY).median
    yield f"  {EMPTY:30s} {empty * 1e3:9.1f} ms CPU"
    for result in by_name.values():
        share = (result.median - empty) / (by_name["renderers"].median - empty)
        more = f"  {share:.2f} of what renderers takes" if result.name == "prl" else ""
        yield f"  {result.name:30s} {(result.median - empty) * 1e3:9.1f} ms CPU on top{more}"


def _cpu(program: str) -> float:
    before = os.times()
    subprocess.run([sys.executable, "-c", program], check=True)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system
