"""Names: conflicts, preference, allow and deny, and what a missing name's error says."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from prl.plugin import (
    CommandEntry,
    PluginSettings,
    Registry,
    RendererEntry,
    configure_registry,
    get_registry,
    known,
)
from prl.plugin.settings import STRICT_VARIABLE
from prl.testing.fake_dist import renderer_plugin, write_fake_dist
from prl.types import ConfigError, PluginError

Build = Callable[..., Registry]


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in for the generated table of first-party families."""
    facts = {"models": ["moonshotai/Kimi-K2-Instruct"]}
    fake = {"prl-renderer-kimi": {"renderer": {"kimi-k2": facts}}, "prl-renderer-glm": {"renderer": {"glm-4.5": {}}}}
    monkeypatch.setattr(known, "known_table", lambda: fake)


def test_find_returns_the_typed_record(site: Path, build: Build) -> None:
    """The one look-up that every part of a run uses."""
    write_fake_dist(site, "acme", renderer_plugin("tin"))
    registry = build()
    assert registry.find("renderer", "tin") == RendererEntry(name="tin", target="json:loads")
    assert registry.find(RendererEntry, "tin") is registry.find("renderer", "tin")
    assert registry.provider(registry.find("renderer", "tin")).dist == "acme"
    assert registry.all(CommandEntry) == []


def test_two_plugins_offering_one_name_is_an_error_that_settles_itself(site: Path, build: Build) -> None:
    """Which of two renderers trains the model depends on installation order."""
    write_fake_dist(site, "acme-glm", renderer_plugin("glm-4.5", "acme-own"), version="0.2")
    write_fake_dist(site, "other-glm", renderer_plugin("glm-4.5"), version="3.1")
    registry = build()
    with pytest.raises(PluginError) as caught:
        registry.find("renderer", "glm-4.5")
    assert caught.value.what == "renderer 'glm-4.5' is offered by 2 plugins"
    assert caught.value.where == f"acme-glm (acme-glm 0.2 at {site}); other-glm (other-glm 3.1 at {site})"
    assert '[plugins.prefer] "renderer:glm-4.5" = "acme-glm"' in caught.value.next_step
    assert [row.status for row in registry.plugins()] == ["conflict", "conflict"]
    assert registry.find("renderer", "acme-own").name == "acme-own"
    assert [record.name for record in registry.all("renderer")] == ["acme-own"]


def test_prefer_settles_a_conflict(site: Path, build: Build) -> None:
    """The line that the conflict prints does nothing."""
    write_fake_dist(site, "acme-glm", renderer_plugin("glm-4.5", target="acme:create"))
    write_fake_dist(site, "other-glm", renderer_plugin("glm-4.5", target="other:create"))
    registry = build(prefer={"renderer:glm-4.5": "other_glm"})
    registry.check()
    assert registry.find("renderer", "glm-4.5").target == "other:create"
    assert [row.status for row in registry.plugins()] == ["loaded", "loaded"]


def test_prefer_takes_a_kind_in_the_spelling_of_the_command_line(site: Path, build: Build) -> None:
    """`--kind tool-parser` works everywhere but in `prefer`, which passes its check and then settles nothing."""
    source = """
        from prl.plugin import ToolParserEntry, hookimpl
        @hookimpl
        def prl_tool_parsers():
            return [ToolParserEntry(name="pythonic", target="{}:create")]
    """
    write_fake_dist(site, "acme", source.format("acme"))
    write_fake_dist(site, "other", source.format("other"))
    registry = build(prefer={"tool-parser:pythonic": "other"})
    registry.check()
    assert registry.find("tool-parser", "pythonic").target == "other:create"


@pytest.mark.parametrize(
    ("key", "plugin", "error"),
    [
        ("renderer:glm-4.5", "acmee", "plugin 'acmee' does not offer renderer 'glm-4.5'"),
        ("renderer:glm-4", "acme", "plugin 'acme' does not offer renderer 'glm-4'"),
        ("renderrer:glm-4.5", "acme", "there is no kind of plugin named 'renderrer'"),
        ("glm-4.5", "acme", "'glm-4.5' is not a kind and a name"),
    ],
)
def test_a_wrong_preference_is_told_and_never_ignored(
    site: Path, build: Build, key: str, plugin: str, error: str
) -> None:
    """A typing error in `prefer` silently leaves the other provider in charge."""
    write_fake_dist(site, "acme", renderer_plugin("glm-4.5"))
    with pytest.raises(PluginError, match=error):
        build(prefer={key: plugin}).check()


def test_disabled_plugins_are_never_imported(site: Path, build: Build) -> None:
    """Switching a slow or broken plugin off still pays for, or dies in, its import."""
    write_fake_dist(site, "fast", renderer_plugin("tin"))
    write_fake_dist(site, "slow", renderer_plugin("zinc", head="import time; time.sleep(2)"))
    registry = build(disable=("slow",))
    assert {row.name: row.status for row in registry.plugins()} == {"fast": "loaded", "slow": "disabled"}
    registry = build(allow=("fast",))
    assert {row.name: row.status for row in registry.plugins()} == {"fast": "loaded", "slow": "disabled"}
    assert "slow_plugin" not in sys.modules


def test_settings_come_from_the_environment() -> None:
    """The documented variables do nothing."""
    settings = PluginSettings.from_environment(
        {"PRL_PLUGINS": "a, b", "PRL_DISABLE_PLUGINS": "c", STRICT_VARIABLE: "1"}
    )
    assert settings == PluginSettings(allow=("a", "b"), disable=("c",), strict=True)
    assert PluginSettings.from_environment({}).allow is None
    assert PluginSettings.from_environment({"PRL_PLUGINS": ""}).allow == ()
    with pytest.raises(ConfigError, match="'maybe' is neither on nor off"):
        PluginSettings.from_environment({STRICT_VARIABLE: "maybe"})


def test_core_is_always_allowed(
    site: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An allow list that does not name prl-core takes the client modes away."""
    monkeypatch.setenv("PRL_PLUGINS", "nothing")
    monkeypatch.setenv("PRL_DISABLE_PLUGINS", "prl-core")
    registry = get_registry()
    assert [row.name for row in registry.plugins() if row.status == "loaded"] == ["prl-core"]
    assert [record.name for record in registry.all("client_mode")] == ["chat", "renderer", "token"]
    assert capsys.readouterr().err.splitlines() == [
        "prl: warning: PRL_PLUGINS names 'nothing', which is not installed.",
        "prl: warning: PRL_DISABLE_PLUGINS names prl-core, which cannot be switched off",
    ]


def test_required_plugins_must_load(site: Path, build: Build) -> None:
    """A run starts without the plugin its config says it needs."""
    write_fake_dist(site, "acme", "raise OSError('no lib')")
    with pytest.raises(PluginError, match="require in \\[plugins\\] names it: importing acme_plugin: OSError: no lib"):
        build(require=("acme",)).check()
    with pytest.raises(PluginError, match="plugin 'acne' is required and not installed") as caught:
        build(require=("acne",)).check()
    assert caught.value.next_step == "Did you mean 'acme'? Try: pip install acne"
    with pytest.raises(PluginError, match=r"not loaded \(disabled\)"):
        build(require=("acme",), disable=("acme",)).check()


def test_missing_name_whose_plugin_is_broken(site: Path, build: Build, table: None) -> None:
    """Told to install what is installed, instead of why it did not load."""
    write_fake_dist(site, "prl-renderer-kimi", "import no_such_module")
    with pytest.raises(PluginError) as caught:
        build().find("renderer", "kimi-k2")
    assert caught.value.what == (
        "renderer 'kimi-k2' belongs to prl-renderer-kimi 1.0, which is installed but was not loaded (error): "
        "importing prl_renderer_kimi_plugin: ModuleNotFoundError: No module named 'no_such_module'"
    )
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_missing_name_that_a_rolled_back_plugin_had_offered(site: Path, build: Build) -> None:
    """A third party's own name is reported as unknown although its plugin is there and broken."""
    tail = "@hookimpl\ndef prl_tool_parsers():\n    raise RuntimeError('boom')"
    write_fake_dist(site, "acme", renderer_plugin("lead", tail=tail))
    with pytest.raises(
        PluginError, match=r"renderer 'lead' belongs to acme 1\.0, which is installed but was not loaded"
    ):
        build().find("renderer", "lead")


def test_missing_name_tells_close_names_then_installs_then_the_list(site: Path, build: Build, table: None) -> None:
    """A typing error ends in a bare KeyError."""
    write_fake_dist(site, "acme", renderer_plugin("kimi-k1", "tin"))
    with pytest.raises(PluginError) as caught:
        build().find("renderer", "kimi-k2")
    assert caught.value.what == "no renderer is named 'kimi-k2'"
    assert caught.value.next_step == (
        "Did you mean 'kimi-k1'? Try: pip install prl-renderer-kimi Available: kimi-k1, tin."
    )
    with pytest.raises(PluginError) as caught:
        build().find("renderer", "unheard-of")
    assert caught.value.next_step == "Available: kimi-k1, tin."


def test_missing_name_mentions_broken_plugins_that_may_offer_it(site: Path, build: Build) -> None:
    """A name is unknown because its plugin failed, and the error does not say that one did."""
    write_fake_dist(site, "acme", "raise OSError('no lib')")
    with pytest.raises(PluginError) as caught:
        build().find("renderer", "acme-7b")
    assert caught.value.where == "installed but not loaded: acme (error: importing acme_plugin: OSError: no lib)"
    assert isinstance(caught.value.__cause__, OSError)


def test_missing_name_of_an_installed_older_plugin(site: Path, build: Build, table: None) -> None:
    """Told to install a distribution that is there; an upgrade is what helps."""
    write_fake_dist(site, "prl-renderer-kimi", renderer_plugin("kimi-old"))
    with pytest.raises(PluginError) as caught:
        build().find("renderer", "kimi-k2")
    assert "Try: pip install --upgrade prl-renderer-kimi" in caught.value.next_step


def test_unknown_kind_is_told(build: Build) -> None:
    """A misspelt kind finds nothing and says nothing."""
    with pytest.raises(PluginError) as caught:
        build().find("tool-parsers", "hermes")
    assert caught.value.what == "there is no kind of plugin named 'tool_parsers'"
    assert caught.value.next_step.startswith("Did you mean 'tool_parser'?")


def test_hooks_fire_once_per_process(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hooks with a cost or an effect run again for every part of a run."""
    head = "import pathlib\nCALLS = pathlib.Path(__file__).with_name('calls')"
    tail = """
        @hookimpl
        def prl_tool_parsers():
            CALLS.open('a').write('x')
            return []
    """
    write_fake_dist(site, "acme", renderer_plugin("tin", head=head, tail=tail))
    monkeypatch.setenv("PRL_PLUGINS", "acme")
    first = get_registry()
    assert get_registry() is first
    assert configure_registry(PluginSettings.from_environment()) is first
    other = configure_registry(PluginSettings(allow=("acme",), prefer={"renderer:tin": "acme"}))
    assert get_registry() is other
    assert (site / "calls").read_text() == "x"


def test_a_broken_plugin_nobody_needs_is_one_warning_line(
    site: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A failure is swallowed, or fills the screen."""
    write_fake_dist(site, "good", renderer_plugin("tin"))
    write_fake_dist(site, "bad", "raise OSError('no lib')")
    monkeypatch.setenv("PRL_PLUGINS", "good,bad")
    assert get_registry().find("renderer", "tin").name == "tin"
    get_registry()
    configure_registry(PluginSettings(allow=("good", "bad"), prefer={"renderer:tin": "good"}))
    assert capsys.readouterr().err == (
        "prl: warning: plugin 'bad' (bad 1.0): error: importing bad_plugin: OSError: no lib "
        "(see: prl plugins info bad)\n"
    )


def test_strict_processes_refuse_each_time(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second call in a strict process gets the registry that the first was refused."""
    write_fake_dist(site, "bad", "raise OSError('no lib')")
    monkeypatch.setenv("PRL_PLUGINS", "bad")
    monkeypatch.setenv(STRICT_VARIABLE, "1")
    for _ in range(2):
        with pytest.raises(PluginError, match="plugins are strict"):
            get_registry()


def test_asking_for_the_registry_on_import_is_a_row_not_a_recursion(
    site: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A plugin that uses the registry in its light module hangs or overflows the process."""
    write_fake_dist(site, "eager", "from prl.plugin import get_registry\nget_registry()")
    monkeypatch.setenv("PRL_PLUGINS", "eager")
    assert [row.status for row in get_registry().plugins() if row.name == "eager"] == ["error"]
    assert "a plugin asked for the registry while it was being built" in capsys.readouterr().err


def test_importing_prl_and_its_plugins_stays_light() -> None:
    """Every command, and every process of a run, pays for torch at start-up."""
    code = """
import sys
from prl.plugin import get_registry
get_registry()
heavy = {"torch", "transformers", "vllm", "openai"} & sys.modules.keys()
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
