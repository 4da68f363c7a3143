"""`prl plugins ...` and `prl doctor`, run as users run them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prl.testing.fake_dist import renderer_plugin, write_fake_dist

Run = Callable[..., subprocess.CompletedProcess[str]]

BAD_RECORD = """
from prl.plugin import RendererEntry, hookimpl
@hookimpl
def prl_renderers():
    return [RendererEntry(name="a", target="no colon")]
"""
HALF = renderer_plugin("lead", tail="@hookimpl\ndef prl_tool_parsers():\n    raise RuntimeError('boom')")


def listed(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    assert done.returncode == 0, done.stderr
    return {row["distribution"]: row for row in json.loads(done.stdout)["plugins"]}


@pytest.fixture
def zoo(site: Path) -> None:
    """Install one plugin for every way to go wrong."""
    write_fake_dist(site, "good", renderer_plugin("tin"))
    write_fake_dist(site, "broken-import", "import no_such_module_at_all")
    write_fake_dist(site, "quits", "import sys; sys.exit(1)")
    write_fake_dist(site, "wrong-core", renderer_plugin("old"), requires=["prl-core>=99"])
    write_fake_dist(site, "no-core", renderer_plugin("none"), requires=["numpy"])
    write_fake_dist(site, "misspelt", "from prl.plugin import hookimpl\n@hookimpl\ndef prl_rendererz(): return []\n")
    write_fake_dist(site, "bad-record", BAD_RECORD)
    write_fake_dist(site, "half", HALF)
    write_fake_dist(site, "twin-a", renderer_plugin("twin-1"), entry="twin")
    write_fake_dist(site, "twin-b", renderer_plugin("twin-2"), entry="twin")
    write_fake_dist(site, "glm-one", renderer_plugin("glm-x"))
    write_fake_dist(site, "glm-two", renderer_plugin("glm-x"))
    write_fake_dist(site, "sleeps", "import time; time.sleep(600)")
    write_fake_dist(site, "crashes", "import os; os._exit(9)")
    write_fake_dist(site, "off", renderer_plugin("off"))


@pytest.mark.usefixtures("zoo")
def test_the_list_shows_a_true_row_for_every_plugin(prl: Run, site: Path) -> None:
    """One bad package hides the others, or the list itself."""
    started = time.monotonic()
    rows = listed(prl("plugins", "list", "--json", "--timeout", "2", PRL_DISABLE_PLUGINS="off"))
    assert time.monotonic() - started < 60
    expected = {
        "good": ("loaded", ""),
        "broken-import": ("error", "No module named 'no_such_module_at_all'"),
        "quits": ("error", "SystemExit: 1"),
        "wrong-core": ("incompatible", "it needs prl-core >=99, and 0.1.0 is installed"),
        "no-core": ("incompatible", "it declares no requirement on prl-core"),
        "misspelt": ("error", "unknown hook 'prl_rendererz'"),
        "bad-record": ("error", "target must be \"module:attribute\", and is 'no colon'"),
        "half": ("error", "calling prl_tool_parsers: RuntimeError: boom"),
        "twin-a": ("conflict", "more than one distribution installs a plugin named 'twin'"),
        "twin-b": ("conflict", "more than one distribution installs a plugin named 'twin'"),
        "glm-one": ("conflict", "renderer 'glm-x' is offered by 2 plugins"),
        "glm-two": ("conflict", "renderer 'glm-x' is offered by 2 plugins"),
        "sleeps": ("error", "it did not load within 2 s"),
        "crashes": ("error", "it ended the process with exit code 9"),
        "off": ("disabled", "it is switched off"),
    }
    for dist, (status, error) in expected.items():
        assert rows[dist]["status"] == status, dist
        assert error in rows[dist]["error"], dist
        assert rows[dist]["origin"] == str(site)
        assert rows[dist]["version"] == "1.0"
    assert rows["good"]["offers"] == {"renderer": ["tin"]}
    assert rows["half"]["offers"] == {}
    assert rows["prl-core"]["status"] == "loaded"


@pytest.mark.usefixtures("zoo")
def test_the_table_tells_the_same(prl: Run) -> None:
    """Only programs can see what went wrong."""
    done = prl("plugins", "list", "--timeout", "2")
    assert done.returncode == 0
    assert "quits: error\n  error: importing quits_plugin: SystemExit: 1\n" in done.stdout
    assert '  next: Choose one in the config: [plugins.prefer] "renderer:glm-x" = "glm-one"' in done.stdout


def test_strict_listing_fails_after_the_list(prl: Run, site: Path) -> None:
    """A build that must have whole plugins passes."""
    write_fake_dist(site, "quits", "import sys; sys.exit(1)")
    done = prl("plugins", "list", "--json", "--strict-plugins", PRL_PLUGINS="quits")
    assert done.returncode == 1
    assert json.loads(done.stdout)["plugins"]
    assert "plugin 'quits' (quits 1.0) was not loaded (error), and plugins are strict" in done.stderr


def test_one_kind_and_the_failures_beside_it(prl: Run, site: Path) -> None:
    """A filtered list hides that the plugin one looks for is broken."""
    write_fake_dist(site, "good", renderer_plugin("tin"))
    write_fake_dist(site, "quits", "import sys; sys.exit(1)")
    rows = listed(prl("plugins", "list", "--json", "--kind", "renderer", PRL_PLUGINS="good,quits"))
    assert rows["good"]["offers"] == {"renderer": ["tin"]}
    assert rows["quits"]["status"] == "error"
    assert rows["prl-core"]["offers"] == {"renderer": ["default"]}
    done = prl("plugins", "list", "--kind", "rendrer")
    assert done.returncode == 1
    assert "Did you mean 'renderer'?" in done.stderr


def test_no_load_shows_metadata_alone(prl: Run, site: Path) -> None:
    """`--no-load` imports a plugin."""
    head = "import pathlib; pathlib.Path(__file__).with_name('imported').touch()"
    write_fake_dist(site, "good", renderer_plugin("tin", head=head))
    rows = listed(prl("plugins", "list", "--json", "--no-load"))
    assert (rows["good"]["status"], rows["good"]["offers"]) == ("found", {})
    assert not (site / "imported").exists()


SPY = """
import json, sys
from prl.cli.main import main
code = main(sys.argv[1:])
found = sorted(name for name in sys.modules if name.split(".")[0] in {words} or name.endswith("_plugin"))
print(json.dumps(found), file=sys.stderr)
raise SystemExit(code)
"""


@pytest.mark.parametrize("arguments", [["--help"], ["plugins", "list"], ["plugins", "info", "good"], ["--version"]])
def test_listing_and_help_import_no_plugin_and_nothing_heavy(site: Path, arguments: list[str]) -> None:
    """Help takes seconds, or dies of one bad package."""
    write_fake_dist(site, "good", renderer_plugin("tin"))
    write_fake_dist(site, "slow", "import time; time.sleep(1); import torch")
    spy = SPY.replace("{words}", "{'torch', 'transformers', 'vllm', 'openai', 'prl_train', 'prl_renderer_qwen'}")
    done = subprocess.run(
        [sys.executable, "-c", spy, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={"PYTHONPATH": str(site), "PRL_DISABLE_PLUGINS": "slow", "PATH": ""},
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stderr.splitlines()[-1]) == []


def test_disabled_plugins_are_not_imported_in_the_child_either(prl: Run, site: Path) -> None:
    """A disabled plugin still costs its import time in every list."""
    head = "import pathlib; pathlib.Path(__file__).with_name('imported').touch()"
    write_fake_dist(site, "slow", renderer_plugin("tin", head=head))
    assert listed(prl("plugins", "list", "--json", PRL_DISABLE_PLUGINS="slow"))["slow"]["status"] == "disabled"
    assert listed(prl("plugins", "list", "--json", PRL_PLUGINS="other"))["slow"]["status"] == "disabled"
    assert not (site / "imported").exists()


def test_info_shows_the_whole_fault(prl: Run, site: Path) -> None:
    """The list's one line is all there is to find a fault by."""
    write_fake_dist(site, "broken", "def load():\n    raise OSError('no lib')\nload()")
    done = prl("plugins", "info", "broken", PRL_PLUGINS="broken")
    assert done.returncode == 0
    assert "status:       error" in done.stdout
    assert f'File "{site}/broken_plugin.py", line 2, in load' in done.stdout
    unknown = prl("plugins", "info", "brokn", PRL_PLUGINS="broken")
    assert unknown.returncode == 1
    assert "Did you mean 'broken'?" in unknown.stderr
    assert "Traceback" not in unknown.stderr


def test_info_finds_the_plugin_of_an_offered_name(prl: Run, site: Path) -> None:
    """The user knows the renderer's name, not the package's."""
    write_fake_dist(site, "acme", renderer_plugin("tin"))
    done = prl("plugins", "info", "tin", "--json", PRL_PLUGINS="acme")
    assert json.loads(done.stdout)["distribution"] == "acme"


def test_freeze_prints_requirement_lines_and_refuses_half_a_list(prl: Run, site: Path) -> None:
    """Another machine is set up from a list that left out what had failed here."""
    write_fake_dist(site, "acme", renderer_plugin("tin"), version="1.2")
    done = prl("plugins", "freeze", PRL_PLUGINS="acme")
    assert done.stdout.splitlines()[1:] == ["acme==1.2", "prl-core==0.1.0"]
    rows = json.loads(prl("plugins", "freeze", "--json", PRL_PLUGINS="acme").stdout)["plugins"]
    assert [row["name"] for row in rows] == ["acme", "prl-core"]
    write_fake_dist(site, "broken", "raise OSError('no lib')")
    failed = prl("plugins", "freeze", PRL_PLUGINS="acme,broken")
    assert (failed.returncode, failed.stdout) == (1, "")
    assert "a frozen list must be whole" in failed.stderr


CHECKS = """
from prl.plugin import CheckEntry, hookimpl

@hookimpl
def prl_checks():
    return [CheckEntry(name=name, target=f"checks_target:{name}")
            for name in ("fine", "raises", "exits", "odd", "silent")]
"""
CHECKS_TARGET = """
def fine():
    yield "ok", "all is well"

def raises():
    raise ValueError("unexpected")

def exits():
    raise SystemExit("no GPU")

def odd():
    return [("great", "x")]

def silent():
    return []
"""


def test_doctor_runs_every_check_and_fails_where_one_does(prl: Run, site: Path) -> None:
    """One check that raises hides the others, or a failed check exits with 0."""
    write_fake_dist(site, "acme", CHECKS)
    (site / "checks_target.py").write_text(CHECKS_TARGET)
    done = prl("doctor", "--json", PRL_PLUGINS="acme")
    found = {row["check"]: (row["status"], row["text"]) for row in json.loads(done.stdout)}
    assert found["fine"] == ("ok", "all is well")
    assert found["raises"] == ("fail", "the check itself failed: ValueError: unexpected")
    assert found["exits"] == ("fail", "the check itself failed: SystemExit: no GPU")
    assert found["odd"] == ("fail", "the check returned status 'great'; ok, warn or fail are known")
    assert found["silent"] == ("warn", "the check returned nothing")
    assert found["plugin prl-core"][0] == "ok"
    assert done.returncode == 1


def test_doctor_passes_on_a_sound_installation(prl: Run, site: Path) -> None:
    """A sound installation is reported as broken."""
    write_fake_dist(site, "acme", renderer_plugin("tin"))
    done = prl("doctor", PRL_PLUGINS="acme")
    assert done.returncode == 0, done.stdout
    assert "ok    plugin acme: 1.0 loaded, offers 1 name\n" in done.stdout
