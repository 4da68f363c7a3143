"""Wheels of all distributions in one folder: one family from it alone, the whole set together, one taken away again."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from fixtures.environments import ROOT, Environment, linked_environment, workspace_distributions

pytestmark = pytest.mark.heavy

RENDER = """
import sys
import prl
from prl.plugin import get_registry
from prl.testing.byte_tokenizer import ByteTokenizer
tokens = get_registry().find("renderer", "kimi-k2").control_tokens
renderer = prl.create_renderer(ByteTokenizer(tokens), "kimi-k2")
ids = renderer.render_ids([{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}])
assert not {"torch", "transformers"} & set(sys.modules)
print(renderer.tokenizer.decode(ids))
"""
RENDERED = "<|im_system|>system<|im_middle|>s<|im_end|><|im_user|>user<|im_middle|>hi<|im_end|>\n"
MISSING = """
import prl
from prl.testing.byte_tokenizer import ByteTokenizer
try:
    prl.create_renderer(ByteTokenizer(("<s>",)), "glm-4.5")
except prl.PrlError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel of every distribution, built from copies so that the checkout stays clean."""
    folder = tmp_path_factory.mktemp("dist")
    ignore = shutil.ignore_patterns("tests", "__pycache__", ".*_cache")
    copies = [
        str(shutil.copytree(source, folder / "source" / name, ignore=ignore))
        for name, source in workspace_distributions().items()
    ]
    words = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), *copies]
    subprocess.run([sys.executable, "-m", "pip", *words], check=True, timeout=600)
    return folder


def listed(text: str) -> dict[str, str]:
    return {row["name"]: row["status"] for row in json.loads(text)["plugins"]}


def test_one_family_installs_from_the_folder_alone(wheels: Path, tmp_path: Path) -> None:
    """Who needs one renderer gets core and that family, and neither torch nor transformers."""
    venv.create(tmp_path / "venv", with_pip=True)
    programs = tmp_path / "venv" / "bin"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PRL_"))}

    def run(program: str, *words: str) -> str:
        done = subprocess.run(
            [str(programs / program), *words], capture_output=True, text=True, env=kept, timeout=600, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    constraints = str(ROOT / "constraints.txt")
    run(
        "python", "-m", "pip", "install", "--quiet", "-c", constraints, "--find-links", str(wheels), "prl-renderer-kimi"
    )
    assert listed(run("prl", "plugins", "list", "--json")) == {"prl-core": "loaded", "prl-renderer-kimi": "loaded"}
    assert run("python", "-c", RENDER) == RENDERED
    names = {row["name"] for row in json.loads(run("python", "-m", "pip", "list", "--format", "json"))}
    assert not {"torch", "transformers"} & names


def install(environment: Environment, wheels: Path) -> None:
    done = environment.run(f"python -m pip install --quiet --no-deps {wheels}/*.whl", wheels)
    assert done.returncode == 0, done.stdout


def test_the_whole_set_works_together_and_without_one_of_it(wheels: Path, tmp_path: Path) -> None:
    """Plugins do not know each other: taking one away leaves the others, and its names say where they come from."""
    environment = linked_environment(tmp_path / "all", keep=())
    install(environment, wheels)
    every = set(workspace_distributions())
    assert listed(environment.run("prl plugins list --json", tmp_path).stdout) == dict.fromkeys(every, "loaded")

    gone = environment.run("python -m pip uninstall --quiet --yes prl-renderer-glm", tmp_path)
    assert gone.returncode == 0, gone.stdout
    rest = listed(environment.run("prl plugins list --json", tmp_path).stdout)
    assert rest == dict.fromkeys(every - {"prl-renderer-glm"}, "loaded")
    (tmp_path / "render.py").write_text(RENDER, encoding="utf-8")
    assert environment.run("python render.py", tmp_path).stdout == RENDERED
    (tmp_path / "missing.py").write_text(MISSING, encoding="utf-8")
    assert "pip install prl-renderer-glm" in environment.run("python missing.py", tmp_path).stdout
