"""Core and a renderer plugin install into an empty environment and work there, without torch or transformers."""

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
from fixtures.environments import ROOT, workspace_distributions

pytestmark = pytest.mark.heavy

RENDER = """
import sys
import prl
from prl.testing.byte_tokenizer import ByteTokenizer
from prl.plugin import get_registry
tokens = get_registry().find("renderer", "qwen3").control_tokens
renderer = prl.create_renderer(ByteTokenizer(tokens), "qwen3")
rendered = renderer.render([{"role": "user", "content": "hi"}], add_generation_prompt=True)
assert not {"torch", "transformers"} & set(sys.modules)
print(renderer.tokenizer.decode(rendered.token_ids), end="")
"""


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of a fresh environment into which core and the Qwen plugin were installed from the checkout."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder / "venv", with_pip=True)
    copies = [
        shutil.copytree(ROOT / "core" / "prl-core", folder / "prl-core"),
        shutil.copytree(ROOT / "plugins" / "prl-renderer-qwen", folder / "prl-renderer-qwen"),
    ]
    words = ["-m", "pip", "install", "--quiet", "-c", str(ROOT / "constraints.txt"), *map(str, copies)]
    run(folder / "venv" / "bin" / "python", *words)
    return folder / "venv" / "bin"


def run(program: Path, *words: str) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PRL_"))}
    done = subprocess.run([str(program), *words], capture_output=True, text=True, env=kept, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_list_shows_both_and_nothing_else(bare: Path) -> None:
    listed = json.loads(run(bare / "prl", "plugins", "list", "--json"))
    assert [(row["name"], row["status"]) for row in listed["plugins"]] == [
        ("prl-core", "loaded"),
        ("prl-renderer-qwen", "loaded"),
    ]


def test_a_renderer_works_where_torch_is_not_installed(bare: Path) -> None:
    expected = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert run(bare / "python", "-c", RENDER) == expected
    installed = run(bare / "python", "-m", "pip", "list", "--format", "json")
    assert not {"torch", "transformers"} & {row["name"] for row in json.loads(installed)}


def test_every_command_of_core_helps_there(bare: Path) -> None:
    """A command that imported something core does not require would fail only at a user's."""
    commands = ("doctor", "plugins info qwen3", "plugins freeze", "render --help", "serve --help", "config show --help")
    for words in commands:
        assert run(bare / "prl", *words.split())


def test_wheels_hold_the_package_its_typing_mark_and_its_data(tmp_path: Path) -> None:
    for name, folder in workspace_distributions().items():
        copy = shutil.copytree(folder, tmp_path / name)
        words = ["--quiet", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), str(copy)]
        run(Path(sys.executable), "-m", "pip", "wheel", *words)
    names = {wheel.name.split("-")[0]: set(zipfile.ZipFile(wheel).namelist()) for wheel in tmp_path.glob("*.whl")}
    assert set(names) == {name.replace("-", "_") for name in workspace_distributions()}
    for name, folder in workspace_distributions().items():
        kept = names[name.replace("-", "_")]
        source = {
            str(path.relative_to(folder / "src"))
            for path in (folder / "src").rglob("*")
            if path.is_file() and "__pycache__" not in path.parts and ".egg-info" not in str(path)
        }
        assert source <= kept, f"{name}: {sorted(source - kept)} are missing from the wheel"
