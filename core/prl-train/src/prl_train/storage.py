"""Directories that are whole or absent: written to a temporary name, sealed with a list of their files, renamed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prl_train.errors import CheckpointError


def write_sealed(
    target: Path, marker: str, values: dict[str, Any], fill: Callable[[Path], None], *, durable: bool = True
) -> Path:
    """Create `target` with what `fill(directory)` writes and a marker of `values` and every file's size and sha256.

    A reader never sees a half-written directory; an older `target` is replaced. `durable` waits for the disk, so that
    the directory also survives a power cut; leave it out for what a restart makes anew.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    work.chmod(0o755)
    try:
        fill(work)
        files = {
            path.relative_to(work).as_posix(): _fingerprint(path) for path in sorted(work.rglob("*")) if path.is_file()
        }
        (work / marker).write_text(json.dumps({**values, "files": files}, indent=2), encoding="utf-8")
        replace_directory(work, target, durable=durable)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target


def read_sealed(target: Path, marker: str, *, verify: bool = False) -> dict[str, Any]:
    """Return the marker's values; raise `CheckpointError` where the directory is not whole.

    Sizes are always compared, sums only with `verify`.
    """
    path = target / marker
    if not path.is_file():
        raise _incomplete(target, f"it has no {marker}")
    try:
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise _incomplete(target, f"{marker} is not JSON") from error
    for name, expected in values["files"].items():
        file = target / name
        if not file.is_file() or file.stat().st_size != expected["size"]:
            raise _incomplete(target, f"{name} is missing or has another size")
        if verify and _fingerprint(file)["sha256"] != expected["sha256"]:
            raise _incomplete(target, f"{name} has another sha256 sum")
    return values


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


def _fingerprint(path: Path) -> dict[str, Any]:
    return {"size": path.stat().st_size, "sha256": file_sha256(path)}


def _incomplete(target: Path, why: str) -> CheckpointError:
    return CheckpointError(
        f"the directory is not whole: {why}",
        where=str(target),
        next_step="use an earlier one; remove this one by hand if you do not need it",
    )
