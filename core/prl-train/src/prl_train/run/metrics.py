"""Read and write metrics.jsonl: one row a step."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from prl.durable import append, cut_torn_line

from .errors import RunError, not_written

EVALUATION = "eval/"
"""How the names of an evaluation's metrics begin."""


def read_metrics(path: Path) -> list[dict[str, float]]:
    """Return the rows, each with `step`; a last line cut by a crash is left out, any other damage raises `RunError`."""
    if not path.is_file():
        return []
    rows: list[dict[str, float]] = []
    lines = path.read_text(encoding="utf-8").split("\n")
    for number, line in enumerate(lines[:-1], start=1):
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            raise RunError(
                f"line {number} is not JSON: {error}", where=str(path), next_step="remove the damaged line"
            ) from error
    return rows


def is_evaluation(values: Mapping[str, float]) -> bool:
    """Whether a row holds nothing but evaluations; it comes when they are done, maybe after later steps' rows."""
    return all(name == "step" or name.startswith(EVALUATION) for name in values)


def append_metrics(path: Path, step: int, values: Mapping[str, float]) -> None:
    """Append one row. A half-written last line of a crashed run is cut off first. Raises `StorageError`."""
    row = json.dumps({"step": step} | {name: value for name, value in values.items() if name != "step"}) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        cut_torn_line(path)
        append(path, row.encode(), mode=0o666)
    except OSError as error:
        raise not_written(path, error) from error
