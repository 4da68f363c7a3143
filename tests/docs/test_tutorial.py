"""The tutorial's commands run, print what it says, and end in the example that contrib/ keeps."""

from __future__ import annotations

from pathlib import Path

import pytest
from fixtures.documents import Reader, titled
from fixtures.environments import ROOT, linked_environment

TUTORIAL = ROOT / "docs" / "tutorial" / "first-renderer-plugin.md"
ECHO = ROOT / "contrib" / "prl-renderer-echo"


def test_every_command_prints_what_the_tutorial_says(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    reader = Reader(linked_environment(tmp_path / "environment"), home)
    assert reader.follow(TUTORIAL) >= 10
    assert (reader.folder / "src" / "prl_renderer_echo" / "py.typed").is_file()


@pytest.mark.parametrize("name", sorted(titled(TUTORIAL)))
def test_contrib_keeps_the_tutorials_file(name: str) -> None:
    assert (ECHO / name).read_text(encoding="utf-8") == titled(TUTORIAL)[name]


def test_contrib_keeps_no_other_code() -> None:
    kept = {str(path.relative_to(ECHO)) for pattern in ("src/**/*.py", "tests/**/*.py") for path in ECHO.glob(pattern)}
    assert kept == {name for name in titled(TUTORIAL) if name.endswith(".py")}
