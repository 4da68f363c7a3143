"""Run pytest on a source text, as a plugin author does."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def run_pytest(tmp_path: Path) -> Callable[[str], str]:
    """Return a function that runs a test module and returns what pytest prints."""

    def run(source: str) -> str:
        (tmp_path / "test_it.py").write_text(source, encoding="utf-8")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PRL_", "PYTEST"))}
        command = [sys.executable, "-m", "pytest", "-q", "-rfE", "-p", "no:cacheprovider", "test_it.py"]
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env={**kept, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return done.stdout + done.stderr

    return run
