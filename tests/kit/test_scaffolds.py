"""`prl plugins new` writes distributions that install, pass their own tests, and pass `prl plugins check`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from prl.cli.plugins_new import kinds, write_distribution
from prl.types import ConfigError

NEEDS = {"attention": "torch", "loss": "torch"}


def run(*command: str, cwd: Path, site: Path | None = None) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PRL_", "PYTEST"))}
    kept |= {"OMP_NUM_THREADS": "1", "PIP_NO_INDEX": "1", "PYTHONPATH": str(site or "")}
    return subprocess.run(
        [sys.executable, "-m", *command], cwd=cwd, env=kept, capture_output=True, text=True, timeout=300, check=False
    )


def prl(*arguments: str, cwd: Path, site: Path | None = None) -> subprocess.CompletedProcess[str]:
    return run("prl.cli.main", *arguments, cwd=cwd, site=site)


def test_there_is_a_scaffold_for_every_kind_that_people_write() -> None:
    assert kinds() == ["attention", "client-mode", "environment", "loss", "parser", "renderer"]


@pytest.mark.parametrize("kind", kinds())
def test_a_new_plugin_passes_its_tests_and_the_kit(kind: str, tmp_path: Path) -> None:
    pytest.importorskip(NEEDS.get(kind, "prl"))
    done = prl("plugins", "new", kind, "acme-1.5", "--dir", str(tmp_path), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / f"prl-{kind}-acme-1-5"
    assert f"wrote {folder}" in done.stdout
    site = tmp_path / "site"
    install = ("install", "--quiet", "--no-deps", "--no-build-isolation", "--target", str(site), str(folder))
    done = run("pip", *install, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    done = run("pytest", "-q", "-p", "no:cacheprovider", "tests", cwd=folder, site=site)
    assert done.returncode == 0, done.stdout
    assert "passed" in done.stdout
    done = prl("plugins", "check", folder.name, "--json", cwd=tmp_path, site=site)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(done.stdout)
    assert {row["name"] for row in rows} == {"acme-1.5"}
    assert sum(row["verdict"] == "pass" for row in rows) >= 4
    assert not [row for row in rows if row["verdict"] in ("fail", "quirk")]


def test_a_new_renderer_comes_with_its_format_in_prose(tmp_path: Path) -> None:
    folder = write_distribution("renderer", "acme", tmp_path)
    assert sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()) == [
        "FORMAT.md",
        "README.md",
        "pyproject.toml",
        "src/prl_renderer_acme/__init__.py",
        "src/prl_renderer_acme/format.py",
        "src/prl_renderer_acme/options.py",
        "src/prl_renderer_acme/plugin.py",
        "src/prl_renderer_acme/py.typed",
        "src/prl_renderer_acme/tools.py",
        "tests/test_conformance.py",
    ]
    assert not [path for path in folder.rglob("*") if path.is_file() and "$" in path.read_text(encoding="utf-8")]


def test_nothing_is_written_over(tmp_path: Path) -> None:
    """A second call would destroy what was written since."""
    folder = write_distribution("parser", "acme", tmp_path)
    (folder / "README.md").write_text("mine", encoding="utf-8")
    with pytest.raises(ConfigError, match="is there already"):
        write_distribution("parser", "acme", tmp_path)
    assert (folder / "README.md").read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize(
    ("kind", "name", "told"),
    [
        ("rendrer", "acme", "Did you mean 'renderer'?"),
        ("common", "acme", "Kinds: attention, client-mode, environment, loss, parser, renderer."),
        ("renderer", "Acme", "small letters"),
        ("renderer", "../acme", "small letters"),
        ("renderer", "", "small letters"),
    ],
)
def test_a_wrong_kind_or_name_is_told_and_nothing_is_written(kind: str, name: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        write_distribution(kind, name, tmp_path)
    assert told in str(caught.value)
    assert list(tmp_path.iterdir()) == []
