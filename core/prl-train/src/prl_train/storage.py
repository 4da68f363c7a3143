"""Directories that are whole or absent: written to a temporary name, sealed with a list of their files, renamed."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prl_train.errors import CheckpointError

_RUST_ERROR = re.compile(r"\(os error (\d+)\)")


def write_sealed(
    target: Path,
    marker: str,
    values: dict[str, Any],
    fill: Callable[[Path], dict[str, dict[str, Any]] | None],
    *,
    durable: bool = True,
) -> Path:
    """Create `target` with what `fill(directory)` writes and a marker of `values` and every file's size and sha256.

    `fill` may return the `fingerprint` of files whose sums it knows already, by their name in the directory.

    A reader never sees a half-written directory; an older `target` is replaced. Where the disk refuses, raise
    `CheckpointError` and leave all as it was. `durable` waits for the disk, so that
    the directory also survives a power cut; leave it out for what a restart makes anew.
    """
    with work_directory(target) as work:
        try:
            known = fill(work) or {}
            names = [path.relative_to(work).as_posix() for path in sorted(work.rglob("*")) if path.is_file()]
            files = {name: known.get(name) or fingerprint(work / name) for name in names}
            (work / marker).write_text(json.dumps({**values, "files": files}, indent=2), encoding="utf-8")
            replace_directory(work, target, durable=durable)
        except BaseException as error:  # torch reports a failed write by an exception that is no `Exception`
            cause = _disk_problem(error)
            if cause is None:
                raise
            raise _not_written(target, cause) from error
    return target


@contextmanager
def work_directory(target: Path) -> Iterator[Path]:
    """Yield an empty directory beside `target`, to fill and rename; what is left of it is removed at the end."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        work.chmod(0o755)
    except OSError as error:
        raise _not_written(target, error.strerror or str(error)) from error
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def remove_directory(target: Path) -> None:
    """Remove a directory, which is whole until it is gone: nobody meets half of it under its name."""
    with work_directory(target) as work:
        os.rename(target, work / target.name)


def _disk_problem(error: BaseException) -> str | None:
    """Return what the system said where writing failed; None where the error is about something else.

    Writers hide it: torch's distributed checkpoint in the failures of each rank, Rust's safetensors in a text.
    """
    seen: list[BaseException] = []
    left = [error]
    while left:
        one = left.pop()
        if isinstance(one, OSError) and one.errno is not None:
            return os.strerror(one.errno)
        if number := _RUST_ERROR.search(str(one)):
            return os.strerror(int(number[1]))
        seen.append(one)
        failures = getattr(one, "failures", None)
        hidden = [part[0] for part in failures.values()] if isinstance(failures, dict) else []
        left += [cause for cause in (one.__cause__, one.__context__, *hidden) if cause and cause not in seen]
    return None


def sweep_unfinished(parent: Path, name: str = "*") -> list[Path]:
    """Remove directories that a killed process left half-written below `parent`, where nobody else writes; name them.

    Where others write to it as well: `name` is the directory that is this process's own. What was moved aside and lost
    its place to nothing is put back.
    """
    found = [path for path in sorted(parent.glob(f".{name}.*")) if path.is_dir()] if parent.is_dir() else []
    for path in found:
        for old in path.iterdir() if ".old." in path.name else ():
            if not (parent / old.name).exists():
                os.rename(old, parent / old.name)
        shutil.rmtree(path, ignore_errors=True)
    return found


def read_sealed(target: Path, marker: str, *, verify: bool = False, part: tuple[int, int] = (0, 1)) -> dict[str, Any]:
    """Return the marker's values; raise `CheckpointError` where the directory is not whole.

    Sizes are always compared, sums only with `verify`. Where n processes verify one directory, `part` is (i, n): this
    one looks at every n-th sum.
    """
    path = target / marker
    if not path.is_file():
        raise _incomplete(target, f"it has no {marker}")
    values, files = _read_marker(path, target)
    for number, (name, expected) in enumerate(files.items()):
        file = target / name
        if not file.is_file() or file.stat().st_size != expected["size"]:
            raise _incomplete(target, f"{name} is missing or has another size")
        if verify and number % part[1] == part[0] and fingerprint(file)["sha256"] != expected["sha256"]:
            raise _incomplete(target, f"{name} has another sha256 sum")
    return values


def _read_marker(path: Path, target: Path) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return a marker's values, and of them what it says of each file."""
    try:
        values: Any = json.loads(path.read_text(encoding="utf-8"))
        files = {str(name): {"size": one["size"], "sha256": one["sha256"]} for name, one in values["files"].items()}
    except ValueError as error:
        raise _incomplete(target, f"{path.name} is not JSON") from error
    except (AttributeError, KeyError, TypeError, IndexError) as error:
        raise _incomplete(target, f"{path.name} does not list the files") from error
    return values, files


def numbered(parent: str | Path, prefix: str) -> list[tuple[int, Path]]:
    """Return what is named by `prefix` and a number below `parent`, by rising number; anything else is not ours.

    Names do not tell the order: `step_1000000` is the last of the alphabet and not of the steps.
    """
    found = ((path.name.removeprefix(prefix), path) for path in Path(parent).glob(f"{prefix}*"))
    return sorted((int(number), path) for number, path in found if number.isascii() and number.isdigit())


def is_sealed(target: Path, marker: str) -> bool:
    """Whether the directory is whole."""
    try:
        read_sealed(target, marker)
    except CheckpointError:
        return False
    return True


def replace_directory(work: Path, target: Path, *, durable: bool = True) -> None:
    """Rename `work` to `target`; an older target is moved aside first and removed after."""
    for path in work.rglob("*") if durable else ():
        if path.is_file():
            _sync(path)
    aside: Path | None = None
    if target.exists():
        aside = Path(tempfile.mkdtemp(prefix=f".{target.name}.old.", dir=target.parent))
        os.rename(target, aside / target.name)
    os.rename(work, target)
    if durable:
        _sync(target.parent)
    if aside is not None:
        shutil.rmtree(aside, ignore_errors=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def file_sha256(path: Path) -> str:
    """Return the sha256 sum of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fingerprint(path: Path) -> dict[str, Any]:
    """Return a file's size and sha256 sum."""
    return {"size": path.stat().st_size, "sha256": file_sha256(path)}


def _not_written(target: Path, problem: str) -> CheckpointError:
    return CheckpointError(
        f"{target.name} cannot be written: {problem}",
        where=str(target),
        next_step="free space (or repair what it says) and go on with --resume: all that was written before is whole",
    )


def _incomplete(target: Path, why: str) -> CheckpointError:
    return CheckpointError(
        f"the directory is not whole: {why}",
        where=str(target),
        next_step="use an earlier one; remove this one by hand if you do not need it",
    )
