"""The kit catches every seeded fault, and passes what is right: a kit that misses faults is worse than none."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit import faults_in_flow, sample
from kit.faults import FAULTS, Fault
from prl.plugin import RendererEntry, get_registry
from prl.testing.checks import Check, Verdict, checks_of, run_check
from prl.testing.fake_dist import active_site, write_fake_dist
from prl.testing.subjects import subject_of

assert faults_in_flow.__doc__  # importing it registers its faults
CHECKS = {one.name: one for one in checks_of("renderer")}
PLUGIN = """
from prl.plugin import RendererEntry, hookimpl
@hookimpl
def prl_renderers():
    return [
        RendererEntry(name="brook", target="kit.sample:create", options="prl.render:RendererOptions",
                      control_tokens={controls!r}),
        RendererEntry(name="hashed", target="kit.sample:create_hash_ordered", options="prl.render:RendererOptions",
                      control_tokens={controls!r}),
    ]
"""


@pytest.mark.parametrize("one", CHECKS.values(), ids=str)
def test_the_kit_passes_a_plugin_that_is_right(one: Check, tmp_path: Path) -> None:
    golden = tmp_path / "golden.json"
    subject = sample.subject(oracle=sample.oracle, golden=golden)
    from prl.testing.checks.oracle import write_golden

    write_golden(subject, golden)
    result = run_check(one, subject)
    skipped = {"another_process_gives_the_same_ids"}
    assert result.verdict is (Verdict.SKIP if one.name in skipped else Verdict.PASS), result.finding


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_the_kit_catches(fault: Fault) -> None:
    needs_oracle = fault.caught_by == "ids_equal_the_oracle"
    subject = sample.subject(fault.make, oracle=sample.oracle if needs_oracle else None)
    result = run_check(CHECKS[fault.caught_by], subject)
    assert result.verdict is Verdict.FAIL
    assert result.finding


def test_there_are_faults_of_many_kinds() -> None:
    assert len(FAULTS) >= 40
    assert len({fault.caught_by for fault in FAULTS}) >= 30


def test_every_check_has_a_fault_that_it_sees() -> None:
    elsewhere = {"another_process_gives_the_same_ids", "ids_equal_the_golden_file"}
    assert CHECKS.keys() - {fault.caught_by for fault in FAULTS} == elsewhere


def test_another_order_in_another_process_is_caught(tmp_path: Path) -> None:
    with active_site(tmp_path / "site") as site:
        write_fake_dist(site, "prl-renderer-brook", PLUGIN.format(controls=sample.CONTROLS))
        verdicts = {}
        for name in ("brook", "hashed"):
            subject = subject_of(get_registry().find(RendererEntry, name))
            verdicts[name] = run_check(CHECKS["another_process_gives_the_same_ids"], subject).verdict
    assert verdicts == {"brook": Verdict.PASS, "hashed": Verdict.FAIL}
