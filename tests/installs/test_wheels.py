"""Wheels of all distributions in one folder: what they hold, one family from it alone, the whole set together.

Core and a renderer work in an empty environment, without torch or transformers.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from fixtures.environments import ROOT, Environment, linked_environment, workspace_distributions

pytestmark = pytest.mark.heavy

RENDER = """
import sys
import prl
from prl.plugin import get_registry
from prl.testing.byte_tokenizer import ByteTokenizer
name = sys.argv[1]
tokens = get_registry().find("renderer", name).control_tokens
renderer = prl.create_renderer(ByteTokenizer(tokens), name)
ids = renderer.render_ids([{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}])
assert not {"torch", "transformers"} & set(sys.modules)
print(renderer.tokenizer.decode(ids))
"""
RENDERED = {
    "kimi-k2": "<|im_system|>system<|im_middle|>s<|im_end|><|im_user|>user<|im_middle|>hi<|im_end|>\n",
    "qwen3": "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n\n",
}
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
    ignore = shutil.ignore_patterns("__pycache__", ".*_cache")
    copies = [
        str(shutil.copytree(source, folder / "source" / name, ignore=ignore))
        for name, source in workspace_distributions().items()
    ]
    words = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), *copies]
    subprocess.run([sys.executable, "-m", "pip", *words], check=True, timeout=600)
    return folder


def listed(text: str) -> dict[str, str]:
    return {row["name"]: row["status"] for row in json.loads(text)["plugins"]}


def run(program: Path, *words: str) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PRL_"))}
    done = subprocess.run([str(program), *words], capture_output=True, text=True, env=kept, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a fresh environment."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder / "venv", with_pip=True)
    return folder / "venv" / "bin"


@pytest.fixture(scope="module")
def one_family(bare: Path, wheels: Path) -> dict[str, str]:
    """What `bare` lists and renders with one family from the folder of wheels."""
    words = ("-c", str(ROOT / "constraints.txt"), "--find-links", str(wheels), "prl-renderer-kimi")
    run(bare / "python", "-m", "pip", "install", "--quiet", *words)
    plugins = run(bare / "prl", "plugins", "list", "--json")
    return {"plugins": plugins, "rendered": run(bare / "python", "-c", RENDER, "kimi-k2")}


@pytest.fixture(scope="module")
def two_families(bare: Path, one_family: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with a second family, which pip builds from the checkout."""
    copy = tmp_path_factory.mktemp("checkout") / "prl-renderer-qwen"
    shutil.copytree(ROOT / "plugins" / "prl-renderer-qwen", copy)
    run(bare / "python", "-m", "pip", "install", "--quiet", "-c", str(ROOT / "constraints.txt"), str(copy))
    return bare


def test_one_family_installs_from_the_folder_alone(one_family: dict[str, str]) -> None:
    """Who needs one renderer gets core and that family."""
    assert listed(one_family["plugins"]) == {"prl-core": "loaded", "prl-renderer-kimi": "loaded"}
    assert one_family["rendered"] == RENDERED["kimi-k2"]


def test_a_second_family_stands_beside_it_and_neither_needs_torch(two_families: Path) -> None:
    names = ("prl-core", "prl-renderer-kimi", "prl-renderer-qwen")
    assert listed(run(two_families / "prl", "plugins", "list", "--json")) == dict.fromkeys(names, "loaded")
    assert run(two_families / "python", "-c", RENDER, "qwen3") == RENDERED["qwen3"]
    installed = run(two_families / "python", "-m", "pip", "list", "--format", "json")
    assert not {"torch", "transformers"} & {row["name"] for row in json.loads(installed)}


def test_every_command_of_core_helps_there(two_families: Path) -> None:
    """A command that imported something core does not require would fail only at a user's."""
    commands = ("doctor", "plugins info qwen3", "plugins freeze", "render --help", "serve --help", "config show --help")
    for words in commands:
        assert run(two_families / "prl", *words.split())


def test_wheels_hold_the_package_its_typing_mark_and_its_data(wheels: Path) -> None:
    names = {wheel.name.split("-")[0]: set(zipfile.ZipFile(wheel).namelist()) for wheel in wheels.glob("*.whl")}
    assert set(names) == {name.replace("-", "_") for name in workspace_distributions()}
    for name, folder in workspace_distributions().items():
        kept = names[name.replace("-", "_")]
        source = {
            str(path.relative_to(folder / "src"))
            for path in (folder / "src").rglob("*")
            if path.is_file() and "__pycache__" not in path.parts and ".egg-info" not in str(path)
        }
        assert source <= kept, f"{name}: {sorted(source - kept)} are missing from the wheel"


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
    assert environment.run("python render.py kimi-k2", tmp_path).stdout == RENDERED["kimi-k2"]
    (tmp_path / "missing.py").write_text(MISSING, encoding="utf-8")
    assert "pip install prl-renderer-glm" in environment.run("python missing.py", tmp_path).stdout
