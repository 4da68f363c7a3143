"""Finding and running commands: core's, plugins', and wrong ones."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from prl.testing.fake_dist import renderer_plugin, write_fake_dist

Run = Callable[..., subprocess.CompletedProcess[str]]

COMMANDS = """
from prl.plugin import CommandEntry, EngineEntry, hookimpl

@hookimpl
def prl_commands():
    return [
        CommandEntry(name="greet", target="acme_heavy:greet", summary="Greet someone", config="acme_heavy:Config"),
        CommandEntry(name="lost", target="acme_heavy:no_such"),
    ]

@hookimpl
def prl_engines():
    return [
        EngineEntry(name="toy", target="acme_heavy:engine", options="acme_heavy:EngineOptions"),
        EngineEntry(name="far", target="acme_heavy:engine", needs=("no_such_module",), install="pip install acme-far"),
    ]
"""
HEAVY = """
from pathlib import Path
from pydantic import BaseModel, ConfigDict
from prl.config import PluginsConfig
from prl.types import EngineError

class Config(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str = "world"
    times: int = 1
    plugins: PluginsConfig = PluginsConfig()

class EngineOptions(BaseModel):
    model_config = ConfigDict(extra="forbid")
    model: str
    port: int = 8000
    max_model_len: int | None = None

class Engine:
    def __init__(self, options):
        self.options = options
    def serve(self):
        print(self.options.model_dump_json())

def engine(options):
    return Engine(options)

def greet(name: str, *, times: int = 1, config: Path | None = None, fail: bool = False) -> int:
    if fail:
        raise EngineError("no engine answers", where="http://127.0.0.1:1", next_step="Start one: prl serve")
    print("hello " + name * times)
    return 0 if times else 5
"""


@pytest.fixture
def acme(site: Path) -> None:
    write_fake_dist(site, "acme", COMMANDS)
    (site / "acme_heavy.py").write_text(HEAVY)


@pytest.mark.usefixtures("acme")
def test_a_plugins_function_becomes_a_command(prl: Run) -> None:
    """`prl rl` does not exist although prl-train is installed."""
    done = prl("greet", "you", "--times", "2", PRL_PLUGINS="acme")
    assert (done.returncode, done.stdout) == (0, "hello youyou\n"), done.stderr
    assert prl("greet", "you", "--times", "0", PRL_PLUGINS="acme").returncode == 5
    assert "--times" in prl("greet", "--help", PRL_PLUGINS="acme").stdout


@pytest.mark.usefixtures("acme")
def test_help_lists_core_and_plugin_commands(prl: Run, site: Path) -> None:
    """The user cannot see that a plugin brought a command, or that one failed."""
    write_fake_dist(site, "broken", "raise OSError('no lib')")
    done = prl("--help", PRL_PLUGINS="acme,broken")
    assert done.returncode == 0
    assert "  plugins list " in done.stdout
    assert "  greet  Greet someone\n" in done.stdout
    assert "Not loaded, see `prl plugins list`: broken\n" in done.stdout


@pytest.mark.usefixtures("acme")
def test_errors_are_three_parts_without_a_traceback(prl: Run) -> None:
    """The user gets a page of Python instead of what to do."""
    done = prl("greet", "you", "--fail", PRL_PLUGINS="acme")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "prl: error: no engine answers\n  where: http://127.0.0.1:1\n  next:  Start one: prl serve\n"
    )
    assert "Traceback" in prl("greet", "you", "--fail", "--debug", PRL_PLUGINS="acme").stderr
    assert "Traceback" in prl("greet", "you", "--fail", PRL_PLUGINS="acme", PRL_DEBUG="1").stderr


@pytest.mark.usefixtures("acme")
@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["greeet"], 2, "no command is named 'greeet'\n  where: prl\n  next:  Did you mean 'greet'?"),
        (["plugins", "lst"], 2, "'plugins' has no verb 'lst'"),
        (["plugins", "list", "--jsn"], 2, 'Unknown option: "--jsn"'),
        (["render", "--fromat", "json"], 2, 'Unknown option: "--fromat"'),
        (["greet"], 2, "prl greet --help"),
        (["--frobnicate"], 2, "unknown option '--frobnicate'"),
        (["zzz"], 1, "no command is named 'zzz'"),
        (["lost"], 1, "module 'acme_heavy' has no attribute 'no_such'"),
        ([], 2, ""),
        (["plugins"], 2, ""),
    ],
)
def test_wrong_command_lines_say_what_to_type(prl: Run, arguments: list[str], code: int, text: str) -> None:
    """A typing error ends in a traceback, or in exit code 0."""
    done = prl(*arguments, PRL_PLUGINS="acme")
    assert done.returncode == code
    assert text.replace('"', "") in done.stderr.replace('"', "")
    assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("acme")
def test_the_config_files_plugins_section_holds_before_anything_loads(prl: Run, site: Path, tmp_path: Path) -> None:
    """A plugin that the config disables is imported to find the command."""
    head = "import pathlib; pathlib.Path(__file__).with_name('imported').touch()"
    write_fake_dist(site, "slow", renderer_plugin("tin", head=head))
    config = tmp_path / "run.toml"
    config.write_text('[plugins]\ndisable = ["slow"]\n')
    assert prl("greet", "you", "--config", str(config), PRL_PLUGINS="acme,slow").returncode == 0
    assert not (site / "imported").exists()
    config.write_text('name = "x"\n\n[plugins]\ndisabel = ["slow"]\n')
    done = prl("greet", "you", f"--config={config}", PRL_PLUGINS="acme,slow")
    assert done.returncode == 1
    assert "unknown key 'disabel'" in done.stderr
    assert f"{config}:4" in done.stderr


@pytest.mark.usefixtures("acme")
def test_serve_builds_the_engines_options(prl: Run, tmp_path: Path) -> None:
    """Options reach the engine as text, under other names, or not at all."""
    done = prl("serve", "--engine", "toy", "--model", "dir", "--max-model-len", "512", "port=9", PRL_PLUGINS="acme")
    assert json.loads(done.stdout) == {"model": "dir", "port": 9, "max_model_len": 512}, done.stderr
    config = tmp_path / "run.toml"
    config.write_text('[engine]\nkind = "toy"\n[engine.options]\nmodel = "from-file"\nport = 7\n')
    done = prl("serve", "--engine", "toy", "-c", str(config), "--port", "8", PRL_PLUGINS="acme")
    assert json.loads(done.stdout) == {"model": "from-file", "port": 8, "max_model_len": None}, done.stderr


@pytest.mark.usefixtures("acme")
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--engine", "toi", "--model", "x"], "no engine is named 'toi'\n  next:  Did you mean 'toy'?"),
        (["--engine", "toy"], "key 'model' is missing\n  where: prl serve --engine toy\n"),
        (["--engine", "toy", "--model", "x", "--prot", "1"], "unknown key 'prot'"),
        (["--engine", "far", "--model", "x"], "engine 'far' needs no_such_module, which cannot be imported"),
        (["--engine", "toy", "just-a-word"], "'just-a-word' is not a key and a value"),
    ],
)
def test_serve_refuses_in_three_parts(prl: Run, arguments: list[str], text: str) -> None:
    """A wrong option starts a server that ignores it."""
    done = prl("serve", *arguments, PRL_PLUGINS="acme")
    assert done.returncode == 1
    assert text in done.stderr
    assert done.stdout == ""


@pytest.mark.usefixtures("acme")
def test_config_show_and_schema(prl: Run, tmp_path: Path) -> None:
    """The user cannot see what a config resolves to."""
    config = tmp_path / "run.toml"
    config.write_text("times = 2\n")
    done = prl("config", "show", "greet", "-c", str(config), "name=you", PRL_PLUGINS="acme", PRL_TIMES="3")
    assert done.stdout.startswith('name = "you"\ntimes = 3\n\n[plugins]\n'), done.stderr
    schema = json.loads(prl("config", "schema", "greet", PRL_PLUGINS="acme").stdout)
    assert schema["properties"]["times"] == {"default": 1, "title": "Times", "type": "integer"}
    done = prl("config", "show", "lost", PRL_PLUGINS="acme")
    assert done.returncode == 1
    assert "Commands with a config: greet." in done.stderr


def test_a_reader_that_leaves_is_no_error(prl: Run, site: Path) -> None:
    """`prl plugins list | head -1` ends in a traceback."""
    import os
    import sys

    script = f'"{sys.executable}" -m prl.cli.main plugins list --json | true'
    done = subprocess.run(
        ["/bin/sh", "-c", script], capture_output=True, text=True, timeout=120, env={**os.environ, "PRL_PLUGINS": ""}
    )
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


def test_what_was_printed_before_a_fault_is_not_lost() -> None:
    """A command in a pipe: its output waits in a buffer when a file cannot be read."""
    import sys

    script = "from prl.cli import main; main._run = lambda words: print('so far') or open('/no/such/file')\n"
    script += "raise SystemExit(main.main(['doctor']))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (1, "so far\n")
    assert "where: /no/such/file" in done.stderr


@pytest.mark.parametrize(
    ("cause", "told"),
    [
        (OSError(28, "No space left on device"), "No space left on device\n  where: standard output, or a file"),
        (PermissionError(13, "Permission denied", "a/b"), "Permission denied\n  where: a/b"),
        (UnicodeEncodeError("latin-1", "ab\u20ac", 2, 3, "ordinal"), "'\u20ac', which the encoding latin-1 lacks"),
    ],
)
def test_what_the_system_refuses_is_told_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], cause: Exception, told: str
) -> None:
    """`prl config show rl > full-disk`, or a name with an accent on a terminal that has none."""
    from prl.cli import main as command_line

    def fail(words: list[str]) -> int:
        raise cause

    monkeypatch.setattr(command_line, "_run", fail)
    monkeypatch.setattr(command_line, "_drop_output", lambda: None)
    assert command_line.main(["doctor"]) == 1
    lines = capsys.readouterr().err
    assert lines.startswith("prl: error: ")
    assert told in lines
    assert "\n  next:  " in lines
