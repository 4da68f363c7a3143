"""Lazy targets and options: imported on first use, checked against the plugin's own model."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from prl.plugin import create, get_registry, load_target
from prl.testing.fake_dist import write_fake_dist
from prl.types import ConfigError, PluginError

PLUGIN = """
    from prl.plugin import AttentionEntry, EngineEntry, RendererEntry, ToolParserEntry, hookimpl

    @hookimpl
    def prl_renderers():
        return [
            RendererEntry(name="tin", target="acme_heavy:create", options="acme_heavy:Options"),
            RendererEntry(name="plain", target="acme_heavy:create"),
            RendererEntry(name="gone", target="acme_heavy:no_such"),
            RendererEntry(name="broken", target="acme_broken:create"),
            RendererEntry(name="leaves", target="acme_leaves:create"),
            RendererEntry(name="loose", target="acme_heavy:create", options="acme_heavy:Loose"),
        ]

    @hookimpl
    def prl_engines():
        return [EngineEntry(name="far", target="acme_heavy:create", needs=("json", "no_such_module", "no_such.sub"),
                            install="pip install 'acme[far]'")]

    @hookimpl
    def prl_attention_kernels():
        return [AttentionEntry(name="kern", target="acme_heavy:kernel")]
"""
HEAVY = """
from pydantic import BaseModel, ConfigDict, Field

class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")
    depth: int = 0

class Options(BaseModel):
    model_config = ConfigDict(extra="forbid")
    enable_thinking: bool = True
    level: int = Field(default=1, ge=0)
    inner: Inner = Inner()

class Loose(BaseModel):
    level: int = 1

def create(tokenizer, options):
    return tokenizer, options

def kernel():
    return "kernel"
"""


@pytest.fixture(autouse=True)
def _acme(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_fake_dist(site, "acme", PLUGIN)
    (site / "acme_heavy.py").write_text(HEAVY)
    (site / "acme_leaves.py").write_text("import sys; sys.exit('no GPU here')")
    (site / "acme_broken.py").write_text("raise OSError('libcudart.so.12: cannot open shared object file')")
    monkeypatch.setenv("PRL_PLUGINS", "acme")


def test_the_heavy_half_loads_on_first_use() -> None:
    """Finding a renderer imports the model library of its plugin."""
    record = get_registry().find("renderer", "tin")
    assert "acme_heavy" not in sys.modules
    assert load_target(record).__name__ == "create"
    assert "acme_heavy" in sys.modules


def test_create_checks_options_and_calls_the_target() -> None:
    """Options of the config do not reach the plugin."""
    tokenizer, options = create("renderer", "tin", "TOK", enable_thinking=False, inner={"depth": 2})
    assert tokenizer == "TOK"
    assert options.model_dump() == {"enable_thinking": False, "level": 1, "inner": {"depth": 2}}
    assert create("attention_kernel", "kern") == "kernel"


def test_unknown_option_names_the_close_one_and_all_fields() -> None:
    """A misspelt option is dropped silently and the run trains with the default."""
    with pytest.raises(ConfigError) as caught:
        create("renderer", "tin", "TOK", enable_thinkin=False)
    assert caught.value.what == "unknown key 'enable_thinkin'"
    assert caught.value.where == "options of renderer 'tin'"
    assert caught.value.next_step == "Did you mean 'enable_thinking'? Keys: enable_thinking, level, inner."
    with pytest.raises(ConfigError) as caught:
        create("renderer", "tin", "TOK", inner={"dept": 2})
    assert caught.value.what == "unknown key 'inner.dept'"
    assert caught.value.next_step == "Did you mean 'depth'? Keys of inner: depth."


def test_every_fault_is_told_at_once() -> None:
    """The user corrects one option a run."""
    with pytest.raises(ConfigError) as caught:
        create("renderer", "tin", "TOK", enable_thinking="perhaps", level=-1)
    assert "key 'enable_thinking': input should be a valid boolean" in caught.value.what
    assert "key 'level': input should be greater than or equal to 0, and is -1" in caught.value.what
    assert caught.value.next_step == "Correct enable_thinking. Correct level."


def test_a_model_that_ignores_unknown_keys_is_held_to_the_same_rule() -> None:
    """One plugin's author forgot extra="forbid", and a typing error there is lost."""
    assert create("renderer", "loose", "TOK", level=3)[1].level == 3
    with pytest.raises(ConfigError, match="unknown key 'levle'"):
        create("renderer", "loose", "TOK", levle=3)


def test_options_for_a_plugin_without_any_are_refused() -> None:
    """An option that nothing reads is taken as if it worked."""
    assert create("renderer", "plain", "TOK")[1].model_dump() == {}
    with pytest.raises(ConfigError, match="unknown key 'level'"):
        create("renderer", "plain", "TOK", level=1)
    with pytest.raises(ConfigError, match="attention kernel 'kern' takes no options, and got level"):
        create("attention_kernel", "kern", level=1)


def test_missing_modules_are_told_with_the_install_command() -> None:
    """A chosen engine fails with an ImportError from deep inside."""
    with pytest.raises(PluginError) as caught:
        load_target(get_registry().find("engine", "far"))
    assert caught.value.what == "engine 'far' needs no_such_module, no_such.sub, which cannot be imported"
    assert caught.value.next_step == "Run: pip install 'acme[far]'"


@pytest.mark.parametrize(
    ("name", "cause", "text"),
    [
        ("gone", AttributeError, "module 'acme_heavy' has no attribute 'no_such'"),
        ("broken", OSError, "OSError: libcudart.so.12"),
        ("leaves", SystemExit, "SystemExit: no GPU here"),
    ],
)
def test_a_target_that_cannot_load_is_told_with_its_cause(name: str, cause: type[BaseException], text: str) -> None:
    """A native library that is missing ends the run in a bare traceback, or in none at all."""
    with pytest.raises(PluginError) as caught:
        load_target(get_registry().find("renderer", name))
    assert text in caught.value.what
    assert isinstance(caught.value.__cause__, cause)
