"""Read trajectory files line by line: memory does not grow with their length."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TypeVar

from prl.types import ConfigError, PrlError

from .json_text import mend_surrogates
from .records import RecordedTrajectory
from .shapes import read_trajectory

E = TypeVar("E", bound=PrlError)
STANDARD_INPUT = ("-", "/dev/stdin")


def trajectory_files(source: str) -> list[str]:
    """Return the files to read: the source itself, or the rollouts of a run folder in the order of its steps."""
    folder = Path(source)
    if not folder.is_dir():
        return [source]
    inner = folder / "rollouts" if (folder / "rollouts").is_dir() else folder
    found = [str(path) for path in sorted(inner.glob("*.jsonl"), key=_by_numbers)]
    if not found:
        raise ConfigError(
            "the folder holds no rollouts",
            where=str(inner),
            next_step="Give a run folder that has rollouts/step_*.jsonl, or a JSONL file.",
        )
    return found


def _by_numbers(path: Path) -> list[str | int]:
    """Return what sorts names by the numbers in them: `step_1000000` is after `step_999999`."""
    return [int(part) if place % 2 else part for place, part in enumerate(re.split(r"(\d+)", path.name))]


def read_trajectories(source: str) -> Iterator[RecordedTrajectory | ConfigError]:
    """Yield the trajectory of each line of a file, a run folder or standard input (`-`).

    A `.json` file is read as a whole: one trajectory, one list of messages, or a list of either.
    A line that cannot be read is yielded as a `ConfigError` with file, line and field: the caller decides whether to go
    on. A file that cannot be opened raises.
    """
    for name in trajectory_files(source):
        if name.endswith(".json"):
            yield from _read_document(name)
            continue
        with _opened(name) as file:
            shown = "standard input" if name in STANDARD_INPUT else name
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield _read_line(line, f"{shown}:{number}", number)


def _read_document(name: str) -> Iterator[RecordedTrajectory | ConfigError]:
    with _opened(name) as file:
        text = file.read()
    try:
        data = json.loads(mend_surrogates(text))
    except (ValueError, RecursionError) as cause:
        raise ConfigError(f"the file is not JSON: {cause}", where=name, next_step="Correct it there.") from cause
    several = isinstance(data, list) and not any(isinstance(item, dict) and "role" in item for item in data)
    for number, item in enumerate(data if several else [data], 1):
        yield _checked(item, f"{name}[{number - 1}]" if several else name, number)


def at_line(error: E, where: str) -> E:
    """Return the error with its file and line in front of the field that is at fault."""
    place = f"{where}, {error.where}" if error.where else where
    return type(error)(error.what, where=place, next_step=error.next_step)


@contextmanager
def naming_line(where: str) -> Iterator[None]:
    """Put the file and line in front of what an error within says of the field that is at fault."""
    try:
        yield
    except PrlError as error:
        raise at_line(error, where) from error


def readable(record: RecordedTrajectory | ConfigError) -> RecordedTrajectory:
    """Return the rollout; raise where its line could not be read."""
    if isinstance(record, ConfigError):
        raise record
    return record


def _read_line(line: bytes, where: str, number: int) -> RecordedTrajectory | ConfigError:
    try:
        data = json.loads(mend_surrogates(line.rstrip(b"\r\n")).decode("utf-8"))
    except UnicodeDecodeError as cause:
        return ConfigError(f"the line is not UTF-8: {cause.reason}", where=where, next_step="Write the file as UTF-8.")
    except json.JSONDecodeError as cause:
        return ConfigError(
            f"the line is not JSON: {cause.msg}",
            where=f"{where}:{cause.colno}",
            next_step="Correct it there; each line is one rollout.",
        )
    except ValueError as cause:  # a number of thousands of digits
        return ConfigError(f"the line cannot be read: {cause}", where=where, next_step="Correct it there.")
    except RecursionError:
        return ConfigError("the line is nested too deeply", where=where, next_step="Flatten it, or leave it out.")
    return _checked(data, where, number)


def _checked(data: object, where: str, number: int) -> RecordedTrajectory | ConfigError:
    try:
        return read_trajectory(data, where=where, number=number)
    except ConfigError as error:
        return at_line(error, where)


@contextmanager
def _opened(name: str) -> Iterator[IO[bytes]]:
    if name in STANDARD_INPUT:
        yield sys.stdin.buffer
        return
    try:
        file = Path(name).open("rb")  # noqa: SIM115 (closed below; only opening may be told as unreadable)
    except OSError as cause:
        raise ConfigError(
            f"the input cannot be read: {cause}", where=name, next_step="Give a JSONL file, a run folder, or -."
        ) from cause
    with file:
        yield file
