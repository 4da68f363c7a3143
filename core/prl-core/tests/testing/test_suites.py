"""The suites as plugin authors use them, and what the kit does with findings, quirks and crashes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from prl.parse import TaggedReasoning
from prl.testing.checks import Check, CheckFailed, NotApplicable, Verdict, checks_of, run_check
from prl.testing.suites import conform


@dataclass
class Thing:
    name: str = "thing"
    quirks: Mapping[str, str] = field(default_factory=dict)


def make_check(raises: BaseException | None = None) -> Check:
    def run(_: Any) -> None:
        if raises is not None:
            raise raises

    return Check("thing", "is_right", "Nothing works.", run)


ENDS: list[tuple[BaseException | None, dict[str, str], Verdict, str]] = [
    (None, {}, Verdict.PASS, ""),
    (CheckFailed("wrong"), {}, Verdict.FAIL, "wrong"),
    (NotApplicable("no calls"), {}, Verdict.SKIP, "no calls"),
    (KeyError("id"), {}, Verdict.FAIL, "KeyError: 'id'"),
    (SystemExit(3), {}, Verdict.FAIL, "SystemExit: 3"),
    (CheckFailed("wrong"), {"is_right": "so is the vendor"}, Verdict.QUIRK, "so is the vendor"),
    (None, {"is_right": "so"}, Verdict.FAIL, "passes, though the format declares it a quirk: so"),
    (CheckFailed("wrong"), {"another": "so"}, Verdict.FAIL, "wrong"),
]


@pytest.mark.parametrize(("raises", "quirks", "verdict", "finding"), ENDS)
def test_a_check_ends_in_one_of_four_verdicts(
    raises: BaseException | None, quirks: dict[str, str], verdict: Verdict, finding: str
) -> None:
    """A crash that ended the run would hide the other checks; a stale quirk would hide a fault."""
    result = run_check(make_check(raises), Thing(quirks=quirks))
    assert (result.verdict, result.finding) == (verdict, finding)


def test_the_user_can_still_interrupt() -> None:
    with pytest.raises(KeyboardInterrupt):
        run_check(make_check(KeyboardInterrupt()), Thing())


def test_pytest_sees_findings_skips_and_quirks() -> None:
    conform(make_check(), Thing())
    with pytest.raises(pytest.fail.Exception, match=r"thing: wrong\n  matters because: Nothing works\."):
        conform(make_check(CheckFailed("wrong")), Thing())
    with pytest.raises(pytest.skip.Exception, match="no calls"):
        conform(make_check(NotApplicable("no calls")), Thing())
    with pytest.raises(pytest.xfail.Exception, match="so is the vendor"):
        conform(make_check(CheckFailed("wrong")), Thing(quirks={"is_right": "so is the vendor"}))


KINDS = ("renderer", "tool_parser", "reasoning_parser", "environment", "client_mode", "attention_kernel")


@pytest.mark.parametrize("kind", KINDS)
def test_every_check_says_what_breaks_for_a_user(kind: str) -> None:
    checks = checks_of(kind)
    assert len(checks) >= 4
    assert len({one.name for one in checks}) == len(checks)
    assert [one.name for one in checks if not one.claim.endswith(".")] == []


def test_kinds_without_checks_have_none() -> None:
    assert checks_of("sink") == []


def test_the_checks_need_no_pytest() -> None:
    """`prl plugins check` runs where the testing extra is not installed."""
    code = (
        "import sys; sys.modules['pytest'] = sys.modules['hypothesis'] = None\n"
        "from prl.testing import ByteTokenizer, generate_conversations\n"
        "from prl.testing.checks import ReasoningCodecSubject, checks_of, run_check\n"
        "from prl.parse import TaggedReasoning\n"
        "subject = ReasoningCodecSubject('think', TaggedReasoning())\n"
        "print({run_check(one, subject).verdict.value for one in checks_of('reasoning_parser')})\n"
        "print([name for name in ('torch', 'transformers') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split("\n")[:2] == ["{'pass'}", "[]"]


SUITES = {
    "nothing set": ("class TestIt(RendererSuite): pass", "set `name` to an installed renderer"),
    "codec": ("class TestIt(ToolParserSuite): pass", "override the fixture codec"),
    "reasoning": ("class TestIt(ReasoningParserSuite): pass", "override the fixture codec"),
    "environment": ("class TestIt(EnvironmentSuite): pass", "override the fixture environment"),
    "mode": ("class TestIt(ClientModeSuite): pass", "override the fixture make_mode"),
    "kernel": ("class TestIt(AttentionSuite): pass", "override the fixture kernel"),
    "loss": ("class TestIt(LossSuite): pass", "override the fixture loss"),
}


@pytest.mark.parametrize("source", SUITES.values(), ids=SUITES.keys())
def test_a_suite_without_its_subject_says_what_to_give(
    source: tuple[str, str], run_pytest: Callable[[str], str]
) -> None:
    """An author who forgets the fixture would see forty errors about something else."""
    out = run_pytest(f"from prl.testing import *\n{source[0]}\n")
    assert source[1] in out
    assert "passed" not in out


def test_a_suite_runs_every_check_of_its_kind(run_pytest: Callable[[str], str]) -> None:
    out = run_pytest(
        "import pytest\n"
        "from prl.parse import TaggedReasoning\n"
        "from prl.testing import ReasoningParserSuite\n"
        "class TestThink(ReasoningParserSuite):\n"
        "    @pytest.fixture\n"
        "    def codec(self): return TaggedReasoning()\n"
        "class TestWrong(ReasoningParserSuite):\n"
        "    @pytest.fixture\n"
        "    def codec(self): return TaggedReasoning(close='<think>')\n"
    )
    count = len(checks_of("reasoning_parser"))
    assert f"{count} passed" not in out or "failed" in out
    assert "TestWrong::test_conformance[the_markers_differ]" in out
    assert "both markers are '<think>'" in out


def test_an_unknown_name_of_the_kit_is_an_attribute_error() -> None:
    import prl.testing

    with pytest.raises(AttributeError, match="RenderSuite"):
        _ = prl.testing.RenderSuite  # type: ignore[attr-defined]


def test_reasoning_with_one_marker_for_both_ends_fails() -> None:
    from prl.testing.checks import ReasoningCodecSubject

    subject = ReasoningCodecSubject("same", TaggedReasoning(close="<think>"))
    verdicts = {one.name: run_check(one, subject).verdict for one in checks_of("reasoning_parser")}
    assert verdicts["the_markers_differ"] is Verdict.FAIL
