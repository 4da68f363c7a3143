"""Listing in a child process: a plugin that hangs or crashes is a row, and the rest are still read."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from prl.plugin import FoundPlugin, Outcome, discover
from prl.plugin.loader import load_plugin
from prl.plugin.probe import no_load, probe_plugins
from prl.testing.fake_dist import renderer_plugin, write_fake_dist


def fakes(site: Path) -> list[FoundPlugin]:
    return [plugin for plugin in discover() if plugin.origin == str(site)]


def probe(site: Path, limit_s: float = 30.0) -> dict[str, Outcome]:
    found = fakes(site)
    return dict(zip([plugin.name for plugin in found], probe_plugins(found, limit_s), strict=True))


def test_the_child_reports_what_loading_here_would(site: Path) -> None:
    """The list shows other names, or other errors, than a run gets."""
    write_fake_dist(site, "good", renderer_plugin("tin"))
    write_fake_dist(site, "bad", "raise OSError('no lib')")
    probed = probe(site)
    assert "good_plugin" not in sys.modules
    assert [probed["bad"], probed["good"]] == [load_plugin(plugin) for plugin in fakes(site)]


def test_a_plugin_that_hangs_is_a_row_within_its_limit(site: Path) -> None:
    """`prl plugins list` waits for ever for one package."""
    write_fake_dist(site, "early", renderer_plugin("tin"))
    write_fake_dist(site, "hangs", "import time; time.sleep(600)")
    write_fake_dist(site, "late", renderer_plugin("zinc"))
    started = time.monotonic()
    probed = probe(site, limit_s=1.5)
    assert time.monotonic() - started < 60
    assert probed["hangs"].error == "importing hangs_plugin: it did not load within 1.5 s"
    assert probed["hangs"].status == "error"
    assert [probed["early"].status, probed["late"].status] == ["loaded", "loaded"]


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("import os; os._exit(7)", "importing crash_plugin: it ended the process with exit code 7"),
        (
            "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
            "importing crash_plugin: it ended the process with signal SIGSEGV",
        ),
    ],
)
def test_a_plugin_that_ends_the_process_is_a_row(site: Path, source: str, error: str) -> None:
    """A native crash in one package takes the list down."""
    write_fake_dist(site, "crash", source)
    write_fake_dist(site, "later", renderer_plugin("zinc"))
    probed = probe(site)
    assert probed["crash"].error == error
    assert probed["later"].status == "loaded"


def test_what_a_crashing_plugin_printed_is_kept(site: Path) -> None:
    """The loader's own message about a missing symbol is lost."""
    source = "import os, sys; print('undefined symbol: foo', file=sys.stderr, flush=True); os._exit(1)"
    write_fake_dist(site, "crash", source)
    assert "undefined symbol: foo" in probe(site)["crash"].traceback


def test_noise_of_plugins_never_reaches_the_output(site: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A plugin that prints on import breaks `--json`."""
    write_fake_dist(
        site, "noisy", renderer_plugin("tin", head="print('hello'); import sys; print('x', file=sys.stderr)")
    )
    assert probe(site)["noisy"].status == "loaded"
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_what_a_plugin_started_does_not_keep_the_list_waiting(site: Path) -> None:
    """A thread or a child of a plugin outlives the list."""
    head = """
        import pathlib, subprocess, sys, threading, time
        threading.Thread(target=time.sleep, args=(600,)).start()
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        pathlib.Path(__file__).with_name("pid").write_text(str(child.pid))
    """
    write_fake_dist(site, "starter", renderer_plugin("tin", head=head))
    started = time.monotonic()
    assert probe(site)["starter"].status == "loaded"
    assert time.monotonic() - started < 60
    pid = int((site / "pid").read_text())
    for _ in range(100):
        if not alive(pid):
            break
        time.sleep(0.05)
    assert not alive(pid)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_without_loading_every_plugin_stays_found(site: Path) -> None:
    """`--no-load` imports after all."""
    write_fake_dist(site, "acme", "raise OSError('imported')")
    assert [outcome.status for outcome in no_load(fakes(site))] == ["found"]
