"""The measure behind `make lint` counts what it says it counts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from fixtures.environments import ROOT

SIZES = ROOT / "tests" / "lint" / "sizes.py"


def measured(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SIZES), str(folder)], capture_output=True, text=True, check=False)


def function_of(lines: int, docstring: str = "") -> str:
    body = ([f'    """{docstring}"""'] if docstring else []) + ["    x = 1"] * (lines - 1)
    return "\n".join(["def f():", *body]) + "\n"


def test_sixty_lines_pass_and_sixty_one_do_not(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(function_of(60), encoding="utf-8")
    assert measured(tmp_path).returncode == 0
    (tmp_path / "b.py").write_text(function_of(61), encoding="utf-8")
    done = measured(tmp_path)
    assert done.returncode == 1
    assert done.stderr == "b.py:1 f: a function of 61 lines; at most 60\n"


def test_a_docstring_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(function_of(60, "Say\n\n    much."), encoding="utf-8")
    assert measured(tmp_path).returncode == 0


def test_a_module_of_more_than_500_lines_fails(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n" * 501, encoding="utf-8")
    done = measured(tmp_path)
    assert done.returncode == 1
    assert done.stderr == "a.py: a module of 501 lines; at most 500\n"
