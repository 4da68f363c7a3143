"""A run may die at any moment: after a resume it has the batches, the model and the metrics of one that never died."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CHILD = Path(__file__).parent / "crash_child.py"


@pytest.mark.heavy
def test_a_run_that_dies_at_any_touch_of_a_file_goes_on_as_if_it_had_not(tmp_path: Path) -> None:
    """Dies before each creation, rename, link and removal of a file in turn, and in the middle of a row of metrics."""
    done = subprocess.run([sys.executable, str(CHILD), str(tmp_path)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    ended, whole = results["whole"]
    assert (ended, whole["steps"], whole["trained"][0], whole["weights"]) == (0, [0, 1, 2], 3, 3)
    assert len(set(whole["trained"][1])) == 3, "three batches, none twice"
    assert whole["evaluations"] == [[0, 2, 3], [0, 2, 3]]
    assert results["touched"] > 80
    assert sum(died == 137 for _, died, _, _ in results["killed"]) > results["touched"] - 10
    told = [(moment, found) for moment, *rest in results["killed"] if (found := differences(whole, *rest))]
    assert told == [], done.stderr


def differences(whole: dict[str, Any], died: int, went_on: int, left: dict[str, Any] | None) -> list[str]:
    """Return what differs from the run that never died. It may have evaluated other weights, but reported them all."""
    if died not in (137, 0) or left is None:
        return [f"ended with {died}, then with {went_on}"]
    found = [name for name in whole if name != "evaluations" and whole[name] != left[name]]
    done, reported = left["evaluations"]
    return [*found, *(["evaluations"] if done != reported or done[-1] != 3 else [])]
