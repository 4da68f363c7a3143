"""Make tests/fixtures importable as `fixtures` in the tests of every distribution, and load its pytest fixtures."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "tests"))

pytest_plugins = ["fixtures.plugin"]
