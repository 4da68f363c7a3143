"""What the README and the distributions' own READMEs show is true."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from fixtures.documents import blocks
from fixtures.environments import ROOT, workspace_distributions

import prl
from prl.tokenizer import Tokenizer

README = ROOT / "README.md"
_LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)(?:#([^)]*))?\)")


def documents() -> list[Path]:
    """Return every Markdown file of the project."""
    folders = ("docs", "core", "plugins", "contrib")
    return sorted([*ROOT.glob("*.md"), *(path for folder in folders for path in (ROOT / folder).rglob("*.md"))])


def run_example(path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prl, "load_tokenizer", lambda name: tokenizer)
    [code] = [block.text for block in blocks(path) if block.language == "python"]
    exec(code, {})


def test_the_example_prints_what_the_readme_says(
    qwen3_tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_example(README, qwen3_tokenizer, monkeypatch)
    [printed] = [block.text for block in blocks(README) if block.language == "text"]
    assert capsys.readouterr().out == printed


def test_the_figures_are_those_that_the_audit_prints() -> None:
    """A first claim that nobody can reproduce is the last one that is believed."""
    rows = README.read_text(encoding="utf-8").split("| --- | --- | --- | --- |\n")[1].splitlines()
    told = [[int(cell) for cell in row.strip("|").split("|")[1:]] for row in rows[:2]]
    page = (ROOT / "docs" / "how-to" / "audit-your-rollouts.md").read_text(encoding="utf-8")
    for mode, (breaks, samples, tokens) in zip(("chat", "renderer"), told, strict=True):
        printed = re.search(rf"^  {mode}: (\d+) breaks?, (\d+) samples?, (\d+) tokens$", page, re.M)
        assert printed is not None
        assert [int(one) for one in printed.groups()] == [breaks, samples, tokens]


def test_the_example_has_about_ten_lines() -> None:
    [code] = [block.text for block in blocks(README) if block.language == "python"]
    assert len(code.splitlines()) <= 11


def test_the_cores_own_example_runs(qwen3_tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    run_example(ROOT / "core" / "prl-core" / "README.md", qwen3_tokenizer, monkeypatch)


@pytest.mark.parametrize("path", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_to_a_file(path: Path) -> None:
    targets = [target for target, _ in _LINK.findall(path.read_text(encoding="utf-8"))]
    assert [target for target in targets if not (path.parent / target).exists()] == []


def test_every_page_of_docs_is_reached_from_the_readme() -> None:
    linked = {(README.parent / target).resolve() for target, _ in _LINK.findall(README.read_text(encoding="utf-8"))}
    pages = set((ROOT / "docs").rglob("*.md"))
    assert pages - linked == set()


@pytest.mark.parametrize("target", ["demo", "test", "lint", "bench", "docs", "dist"])
def test_make_has_the_target_and_says_what_it_does(target: str) -> None:
    shown = subprocess.run(["make", "-C", str(ROOT), "help"], capture_output=True, text=True, check=True).stdout
    assert re.search(rf"^{target}\s+\S", shown, re.MULTILINE)


def test_every_distribution_is_whole() -> None:
    """Each has a README that names it, a license, typing, and requires a core that fits."""
    for name, folder in workspace_distributions().items():
        assert (folder / "README.md").read_text(encoding="utf-8").startswith(f"# {name}\n"), name
        [package] = [path for path in (folder / "src").iterdir() if (path / "__init__.py").is_file()]
        assert (package / "py.typed").is_file(), name


def test_every_pinned_requirement_of_a_distribution_is_met_by_the_constraints() -> None:
    import tomllib

    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if "==" in line and not line.startswith("#"))
    for name, folder in workspace_distributions().items():
        project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        extras = [one for group in project.get("optional-dependencies", {}).values() for one in group]
        for text in [*project["dependencies"], *extras]:
            requirement = Requirement(text)
            if requirement.name == "prl-core":
                continue
            pin = pins.get(canonicalize_name(requirement.name))
            assert pin is not None, f"{name} needs {requirement.name}, which constraints.txt does not pin"
            assert requirement.specifier.contains(pin), f"{name}: {requirement} and {requirement.name}=={pin}"
