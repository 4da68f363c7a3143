"""Run the real command line in a process of its own, on a folder of fake distributions."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def site(tmp_path: Path) -> Path:
    path = tmp_path / "site"
    path.mkdir()
    return path


@pytest.fixture
def prl(site: Path, tmp_path: Path) -> Run:
    """Return a function that runs `prl` with the fake distributions on its path."""

    def run(*arguments: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("PRL_")}
        return subprocess.run(
            [sys.executable, "-m", "prl.cli.main", *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=180,
            cwd=tmp_path,
            env={**inherited, "PYTHONPATH": str(site), **environment},
        )

    return run
