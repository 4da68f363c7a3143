"""What starts quickly stays quick: no command that lists or helps imports a heavy package."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "vllm", "openai", "tokenizers", "jinja2", "aiohttp", "fastapi", "numpy")
MODULES_OF_IMPORT_PRL = 40
MODULES_OF_HELP = 350

_PROBE = """
import json, sys
before = set(sys.modules)
{code}
print()
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def imported_by(code: str) -> list[str]:
    """Return the modules that a fresh interpreter imports to run some code."""
    done = subprocess.run(
        [sys.executable, "-c", _PROBE.format(code=code)], capture_output=True, text=True, timeout=120, check=True
    )
    modules: list[str] = json.loads(done.stdout.splitlines()[-1])
    return modules


def heavy_among(modules: list[str]) -> list[str]:
    return sorted({module.partition(".")[0] for module in modules} & set(HEAVY))


def test_import_prl_is_nearly_free() -> None:
    modules = imported_by("import prl")
    assert heavy_among(modules) == []
    assert "pydantic" not in modules
    assert len(modules) <= MODULES_OF_IMPORT_PRL


@pytest.mark.parametrize(
    "words", [["--help"], ["--version"], ["plugins", "list"], ["plugins", "list", "--no-load"], ["plugins", "freeze"]]
)
def test_listing_commands_import_nothing_heavy(words: list[str]) -> None:
    modules = imported_by(f"from prl.cli.main import main\nassert main({words!r}) == 0")
    assert heavy_among(modules) == []
    assert len(modules) <= MODULES_OF_HELP


def test_listing_plugins_imports_no_plugin_into_the_process() -> None:
    modules = imported_by("from prl.cli.main import main\nmain(['plugins', 'list'])")
    roots = {module.partition(".")[0] for module in modules}
    assert not roots & {"prl_train", "prl_engine_local", "prl_renderer_qwen", "prl_renderer_echo"}


def test_loading_every_plugin_imports_nothing_heavy() -> None:
    """A record imports nothing: the plugins' light modules are all that a run's start-up pays for."""
    modules = imported_by("from prl.plugin import get_registry\nassert get_registry().plugins()")
    assert heavy_among(modules) == []


def test_a_renderer_needs_no_deep_learning_library() -> None:
    code = (
        "import prl\nfrom prl.testing.byte_tokenizer import ByteTokenizer\n"
        "from prl.plugin import get_registry\n"
        "record = get_registry().find('renderer', 'qwen3')\n"
        "renderer = prl.create_renderer(ByteTokenizer(record.control_tokens), 'qwen3')\n"
        "assert renderer.render_ids([{'role': 'user', 'content': 'hi'}], add_generation_prompt=True)"
    )
    assert not {"torch", "transformers", "numpy"} & set(heavy_among(imported_by(code)))


def test_a_process_that_only_loads_weights_needs_no_web_framework() -> None:
    """An engine's workers import the checks of checkpoints, and no server."""
    modules = imported_by("import prl.serving.checkpoints, prl.serving.schemas")
    assert heavy_among(modules) == []


def test_the_probe_notices_a_heavy_import() -> None:
    assert heavy_among(imported_by("import jinja2")) == ["jinja2"]
