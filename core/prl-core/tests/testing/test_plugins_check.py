"""`prl plugins check`, run as users run it, on plugins that are right, wrong, and broken."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from prl.testing.fake_dist import write_fake_dist

Run = Callable[..., subprocess.CompletedProcess[str]]
THINK = """
from prl.plugin import ReasoningParserEntry, RendererEntry, hookimpl
from prl.parse import TaggedReasoning
from prl.plugin.options import NoOptions

@hookimpl
def prl_reasoning_parsers():
    here = __name__
    return [
        ReasoningParserEntry(name="right", target=f"{here}:right"),
        ReasoningParserEntry(name="wrong", target=f"{here}:wrong"),
        ReasoningParserEntry(name="odd", target=f"{here}:odd"),
    ]

@hookimpl
def prl_renderers():
    return [
        RendererEntry(name="absent", target="no_such_module:create", control_tokens=("<s>",)),
        RendererEntry(name="bare", target=f"{__name__}:right"),
    ]

def right(options): return TaggedReasoning()
def wrong(options): return TaggedReasoning(strip="x")

class Odd:
    open, close, after_open, before_close, after_close = "<t>", "</t>", "x", "", ""
    strip = content_strip = None
    quirks = {"the_white_space_is_stripped_again": "the vendor writes an x"}

def odd(options): return Odd()
"""


@pytest.fixture
def prl(tmp_path: Path) -> Run:
    site = tmp_path / "site"
    site.mkdir()
    write_fake_dist(site, "acme", THINK)
    write_fake_dist(site, "broken", "import no_such_module_at_all")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PRL_")}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "prl.cli.main", "plugins", "check", *arguments]
        environment = {**kept, "PYTHONPATH": str(site), "NO_COLOR": "1"}
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
        )

    return run


def verdicts(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    return {row["check"]: row["verdict"] for row in json.loads(done.stdout)}


def test_a_right_plugin_passes_with_exit_code_0(prl: Run) -> None:
    done = prl("right")
    assert done.returncode == 0
    assert done.stdout == "reasoning parser right: 7 passed\n"
    assert set(verdicts(prl("right", "--json")).values()) == {"pass"}


def test_a_wrong_plugin_shows_its_first_finding_and_exits_with_1(prl: Run) -> None:
    done = prl("wrong")
    assert done.returncode == 1
    assert "the_white_space_is_stripped_again  fail" in done.stdout
    assert "`after_open` '\\n' is not stripped by 'x'" in done.stdout
    assert "matters because: Reasoning and answer grow by a line feed with every turn." in done.stdout
    assert verdicts(prl("wrong", "--json"))["the_white_space_is_stripped_again"] == "fail"


def test_a_declared_quirk_is_shown_and_does_not_fail(prl: Run) -> None:
    rows = verdicts(prl("odd", "--json"))
    assert rows["the_white_space_is_stripped_again"] == "quirk"


def test_a_target_that_cannot_be_imported_is_a_failed_row(prl: Run) -> None:
    done = prl("absent")
    assert done.returncode == 1
    assert "can_be_created" in done.stdout
    assert "No module named 'no_such_module'" in done.stdout


def test_a_renderer_without_control_tokens_asks_for_a_tokenizer(prl: Run) -> None:
    done = prl("bare", "--verbose")
    assert done.returncode == 0
    assert "give --tokenizer DIR" in done.stdout


def test_a_whole_distribution_is_checked_name_by_name(prl: Run) -> None:
    done = prl("acme", "--json")
    assert done.returncode == 1
    assert {row["name"] for row in json.loads(done.stdout)} == {"absent", "bare", "odd", "right", "wrong"}


def test_a_plugin_that_did_not_load_is_told_in_three_parts(prl: Run) -> None:
    done = prl("broken")
    assert done.returncode == 1
    assert "was not loaded (error), and it cannot be checked" in done.stderr
    assert "next:" in done.stderr


def test_an_unknown_name_is_told_with_the_close_one(prl: Run) -> None:
    done = prl("acmee")
    assert done.returncode == 1
    assert "no plugin named 'acmee' is installed" in done.stderr
    assert "Did you mean 'acme'?" in done.stderr


def test_a_tokenizer_that_is_not_there_is_told(prl: Run) -> None:
    done = prl("right", "--tokenizer", "nowhere/at/all")
    assert done.returncode == 1
    assert "no tokenizer at nowhere/at/all" in done.stderr
