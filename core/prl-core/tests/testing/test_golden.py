"""Golden files: what a format wrote once is what it writes, for the template it was written for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kit import sample

from prl.testing.checks import RendererSubject, Verdict, checks_of, run_check
from prl.testing.checks.oracle import UPDATE_VARIABLE

[CHECK] = [one for one in checks_of("renderer") if one.name == "ids_equal_the_golden_file"]
TEMPLATE = "ab" * 32


def subject(path: Path, **more: Any) -> RendererSubject:
    return sample.subject(golden=path, **{"templates": (TEMPLATE,), **more})


@pytest.fixture
def golden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Record a file as a plugin author does."""
    path = tmp_path / "golden" / "brook.json"
    monkeypatch.setenv(UPDATE_VARIABLE, "1")
    assert run_check(CHECK, subject(path)).verdict is Verdict.PASS
    monkeypatch.delenv(UPDATE_VARIABLE)
    return path


def test_a_recorded_file_passes_and_holds_the_templates_hash(golden: Path) -> None:
    assert run_check(CHECK, subject(golden)).verdict is Verdict.PASS
    data = json.loads(golden.read_text(encoding="utf-8"))
    assert (data["renderer"], data["templates"], len(data["conversations"])) == ("brook", [TEMPLATE], 40)
    assert [path.name for path in golden.parent.iterdir()] == ["brook.json"]


def test_changed_ids_fail_with_the_place(golden: Path) -> None:
    data = json.loads(golden.read_text(encoding="utf-8"))
    data["conversations"][3]["ids"][2] += 1
    golden.write_text(json.dumps(data), encoding="utf-8")
    result = run_check(CHECK, subject(golden))
    assert result.verdict is Verdict.FAIL
    assert result.finding.startswith("conversation 3: token 2 of ")


def test_another_template_asks_for_a_look_and_a_new_record(golden: Path) -> None:
    result = run_check(CHECK, subject(golden, templates=("cd" * 32,)))
    assert result.verdict is Verdict.FAIL
    assert f"record anew with {UPDATE_VARIABLE}=1" in result.finding


def test_a_missing_or_damaged_file_is_told(tmp_path: Path) -> None:
    path = tmp_path / "none.json"
    assert f"record it with {UPDATE_VARIABLE}=1" in run_check(CHECK, subject(path)).finding
    path.write_text("{", encoding="utf-8")
    assert "is not JSON" in run_check(CHECK, subject(path)).finding
