"""The life of a plugin: one fault is one row, and nobody else's."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from prl.plugin import PluginRow, Registry, discover
from prl.testing.fake_dist import renderer_plugin, write_fake_dist
from prl.types import PluginError

Build = Callable[..., Registry]


def row_of(registry: Registry, name: str) -> PluginRow:
    return next(row for row in registry.plugins() if row.name == name)


def test_one_broken_plugin_is_skipped_and_rolled_back(site: Path, build: Build) -> None:
    """A package with a bad native dependency takes every command down, or half of a failing plugin stays registered."""
    write_fake_dist(site, "good", renderer_plugin("tin"), module="good_plugin")
    bad = "raise OSError('libfoo.so.7: cannot open shared object file')"
    write_fake_dist(site, "bad-import", bad, module="bad_plugin", entry="bad_import")
    late_hook = """
        @hookimpl
        def prl_tool_parsers():
            raise RuntimeError("no such codec")
    """
    half = renderer_plugin("lead", tail=late_hook)
    write_fake_dist(site, "bad-register", half, module="half_plugin", entry="bad_register")
    write_fake_dist(site, "late", renderer_plugin("zinc"), module="late_plugin")

    registry = build()

    assert [record.name for record in registry.all("renderer")] == ["tin", "zinc"]
    assert {row.name: row.status for row in registry.plugins()} == {
        "bad_import": "error",
        "bad_register": "error",
        "good": "loaded",
        "late": "loaded",
    }
    broken = row_of(registry, "bad_import").outcome
    assert broken.error == "importing bad_plugin: OSError: libfoo.so.7: cannot open shared object file"
    assert broken.where == f"{site}/bad_plugin.py:1"
    half_row = row_of(registry, "bad_register").outcome
    assert half_row.error == "calling prl_tool_parsers: RuntimeError: no such codec"
    assert "RuntimeError: no such codec" in half_row.traceback


def test_strict_mode_stops_on_any_broken_plugin(site: Path, build: Build) -> None:
    """A run that must be whole starts without a plugin."""
    write_fake_dist(site, "good", renderer_plugin("tin"))
    write_fake_dist(site, "bad", "raise OSError('libfoo.so')")
    build().check()
    with pytest.raises(PluginError, match=r"plugin 'bad' \(bad 1.0\) was not loaded \(error\)") as caught:
        build(strict=True).check()
    assert isinstance(caught.value.__cause__, OSError)


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("class PanicException(BaseException): pass\nraise PanicException('unwrap on None')", "unwrap on None"),
    ],
)
def test_what_is_no_exception_is_a_row_too(site: Path, build: Build, source: str, error: str) -> None:
    """A plugin that calls sys.exit, or whose Rust extension panics, ends the user's command, `prl plugins list` too."""
    write_fake_dist(site, "quitter", source)
    write_fake_dist(site, "good", renderer_plugin("tin"))
    registry = build()
    assert row_of(registry, "quitter").outcome.error.startswith("importing quitter_plugin: ")
    assert row_of(registry, "quitter").outcome.error.endswith(error)
    assert registry.find("renderer", "tin").name == "tin"


def test_keyboard_interrupt_passes(site: Path, build: Build) -> None:
    """Ctrl-C while plugins load is recorded as a plugin's fault and the command goes on."""
    write_fake_dist(site, "stopped", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        build()


@pytest.mark.parametrize(
    ("requires", "error"),
    [
        (["prl-core>=99"], "it needs prl-core >=99, and 0.1.0 is installed"),
        ([], "it declares no requirement on prl-core, so nothing says which plugin API it was written for"),
        (
            ['prl-core>=0.1; extra == "rl"', "numpy"],
            "it declares no requirement on prl-core, so nothing says which plugin API it was written for",
        ),
        (["prl_core<0.1"], "it needs prl-core <0.1, and 0.1.0 is installed"),
        (
            ["prl-core>=0.1; python_version ~= 'x'"],
            "its requirement \"prl-core>=0.1; python_version ~= 'x'\" cannot be read: Undefined <Op('~=')> on "
            f"'{sys.version_info[0]}.{sys.version_info[1]}' and 'x'.",
        ),
        (
            ["prl-core; no_such == 'x'"],
            "its requirement \"prl-core; no_such == 'x'\" cannot be read: Expected a marker variable or quoted string "
            "prl-core; no_such == 'x' ^",
        ),
    ],
)
def test_a_plugin_for_another_core_is_never_imported(site: Path, build: Build, requires: list[str], error: str) -> None:
    """A plugin written for another plugin API is imported and fails somewhere inside."""
    write_fake_dist(site, "old", renderer_plugin("tin"), requires=requires)
    registry = build()
    assert (row_of(registry, "old").status, row_of(registry, "old").outcome.error) == ("incompatible", error)
    assert "old_plugin" not in sys.modules


@pytest.mark.parametrize("requirement", ["prl-core", "PRL_Core[client]>=0.1,<0.2", "prl-core @ file:///tmp/prl-core"])
def test_a_fitting_requirement_loads_in_any_spelling(site: Path, build: Build, requirement: str) -> None:
    """A good plugin is refused for how its author spelt the requirement."""
    write_fake_dist(site, "new", renderer_plugin("tin"), requires=[requirement])
    assert row_of(build(), "new").status == "loaded"


HEAD = "from prl.plugin import RendererEntry, ToolParserEntry, hookimpl\n"


@pytest.mark.parametrize(
    ("source", "error"),
    [
        (
            "@hookimpl\ndef prl_rendererz():\n    return []",
            "unknown hook 'prl_rendererz'",
        ),
        ("def prl_renderers():\n    return []", "function 'prl_renderers' looks like a hook and lacks @hookimpl"),
        (
            "@hookimpl\ndef prl_renderers(registry):\n    return []",
            "Argument(s) {'registry'} are declared in the hookimpl",
        ),
        ("@hookimpl\ndef prl_renderers():\n    return RendererEntry(name='a', target='m:f')", "prl_renderers returned"),
        ("@hookimpl\ndef prl_renderers():\n    return ['qwen3']", "prl_renderers returned 'qwen3'"),
        (
            "@hookimpl\ndef prl_renderers():\n    return [ToolParserEntry(name='a', target='m:f')]",
            "prl_renderers returned ToolParserEntry",
        ),
        ("@hookimpl\ndef prl_renderers():\n    return [RendererEntry(name='', target='m:f')]", "name must be a name"),
        (
            "@hookimpl\ndef prl_renderers():\n    return [RendererEntry(name='a', target='m.f')]",
            "target must be \"module:attribute\", and is 'm.f'",
        ),
        (
            "@hookimpl\ndef prl_renderers():\n    return [RendererEntry(name='a', target='m:f', models='Q/Q3')]",
            "models must be tuple[str, ...], and is 'Q/Q3'",
        ),
        (
            "@hookimpl\ndef prl_renderers():\n    return [RendererEntry(name='a', target='m:f', templates=('abc',))]",
            "templates must be sha256 sums",
        ),
        (
            "@hookimpl\ndef prl_renderers():\n    return [RendererEntry(name='a', target='m:f')] * 2",
            "it offers renderer 'a' twice",
        ),
        ("@hookimpl\ndef prl_renderers():\n    return [RendererEntry(nam='a')]", "unexpected keyword argument 'nam'"),
        (
            "@hookimpl\ndef prl_renderers():\n    yield RendererEntry(name='a', target='m:f')\n"
            "    raise ValueError('later')",
            "ValueError: later",
        ),
        (
            "@hookimpl(wrapper=True)\ndef prl_renderers():\n    return (yield)",
            "hook 'prl_renderers' is a wrapper",
        ),
        ("x = 1", "module 'faulty_plugin' implements no hook"),
    ],
)
def test_a_faulty_plugin_says_what_to_correct(site: Path, build: Build, source: str, error: str) -> None:
    """A misspelt hook or a bad record is passed over silently, and the author wonders why nothing shows up."""
    write_fake_dist(site, "faulty", HEAD + source)
    registry = build()
    row = row_of(registry, "faulty")
    assert row.status == "error"
    assert error in row.outcome.error
    assert registry.all("renderer") == []


def test_a_misspelt_hook_is_told_with_its_line_and_the_close_name(site: Path, build: Build) -> None:
    """The author reads all ten hooks to find the letter that is wrong."""
    write_fake_dist(site, "misspelt", HEAD + "@hookimpl\ndef prl_rendererz():\n    return []")
    outcome = row_of(build(), "misspelt").outcome
    assert outcome.where == f"{site}/misspelt_plugin.py:2"
    assert outcome.next_step.startswith("Did you mean 'prl_renderers'?")


def test_hooks_of_a_newer_core_may_be_marked_optional(site: Path, build: Build) -> None:
    """A plugin cannot serve two core versions at once."""
    tail = "@hookimpl(optionalhook=True)\ndef prl_telepathy():\n    return [1]"
    write_fake_dist(site, "ahead", renderer_plugin("tin", tail=tail))
    assert row_of(build(), "ahead").offers == {"renderer": ["tin"]}


def test_twin_plugin_names_are_a_conflict_that_names_both(site: Path, build: Build) -> None:
    """Of two distributions with one plugin name, the order of installation decides which one works."""
    write_fake_dist(site, "acme-one", renderer_plugin("tin"), entry="acme", version="1.0")
    write_fake_dist(site, "acme-two", renderer_plugin("zinc"), entry="acme", version="2.0")
    registry = build()
    assert [row.status for row in registry.plugins()] == ["conflict", "conflict"]
    for row in registry.plugins():
        assert f"acme-one 1.0 at {site} and acme-two 2.0 at {site}" in row.outcome.error
    assert not {"acme_one_plugin", "acme_two_plugin"} & sys.modules.keys()


def test_a_twin_is_settled_by_its_distributions_name(site: Path, build: Build) -> None:
    """The advice the conflict prints does not work."""
    write_fake_dist(site, "acme-one", renderer_plugin("tin"), entry="acme")
    write_fake_dist(site, "acme-two", renderer_plugin("zinc"), entry="acme")
    registry = build(disable=("acme-two",))
    assert {row.plugin.dist: row.status for row in registry.plugins()} == {"acme-one": "loaded", "acme-two": "disabled"}


def test_unreadable_metadata_of_one_distribution_is_a_row(site: Path) -> None:
    """One damaged dist-info folder hides every plugin of the installation."""
    write_fake_dist(site, "good", renderer_plugin("tin"))
    write_fake_dist(site, "damaged", renderer_plugin("zinc"))
    (site / "damaged-1.0.dist-info" / "entry_points.txt").write_text("[prl.plugins]\nno equals sign here\n")
    rows = {plugin.name: plugin for plugin in discover() if str(site) in plugin.origin}
    assert rows["good"].problem == ""
    assert rows["damaged"].problem.startswith("its metadata cannot be read")


def test_a_distribution_installed_twice_in_one_place_is_told(site: Path, build: Build) -> None:
    """A broken upgrade left two versions' metadata, and which one is believed depends on the file system."""
    write_fake_dist(site, "acme", renderer_plugin("tin"), version="1.0")
    write_fake_dist(site, "acme", renderer_plugin("tin"), version="1.1")
    (row,) = build().plugins()
    assert row.status == "error"
    assert "1.0" in row.outcome.error
    assert "1.1" in row.outcome.error


def test_a_distribution_that_is_no_folder_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python packed into one file holds distributions that can locate no file: every command would end."""

    class Packed(metadata.Distribution):
        def read_text(self, filename: str) -> str | None:
            return "Name: packed\nVersion: 1\n" if filename == "METADATA" else None

        def locate_file(self, path: Any) -> Any:
            raise NotImplementedError

    others = list(metadata.distributions())
    monkeypatch.setattr(metadata, "distributions", lambda: [Packed(), *others])
    assert "prl-core" in {plugin.dist for plugin in discover()}


def test_what_a_killed_installer_left_behind_counts_for_nothing(site: Path, build: Build) -> None:
    """pip was killed half-way once, and a plugin that works is a conflict with its own old copy ever since."""
    write_fake_dist(site, "acme", renderer_plugin("tin"), version="1.0")
    (site / "acme-1.0.dist-info").rename(site / "~cme-1.0.dist-info")
    assert build().plugins() == []
    write_fake_dist(site, "acme", renderer_plugin("tin"), version="1.1")
    assert [(row.plugin.version, row.status) for row in build().plugins()] == [("1.1", "loaded")]


@pytest.mark.parametrize(
    "entry_points",
    [
        "[prl.plugins]\nacme = acme_plugin\nacme = acme_plugin\n",
        "[prl.plugins]\nacme = acme_plugin\n\n[prl.plugins]\nacme = acme_plugin\n",
        "[prl.plugins]\r\nacme = acme_plugin [fast]\r\n",
    ],
    ids=["a line twice", "the group twice", "with an extra"],
)
def test_an_entry_point_counts_once_in_every_form(site: Path, build: Build, entry_points: str) -> None:
    """Editable installs of some versions of setuptools write each entry twice: the plugin is a conflict with itself."""
    write_fake_dist(site, "acme", renderer_plugin("tin"))
    (site / "acme-1.0.dist-info" / "entry_points.txt").write_bytes(entry_points.encode())
    assert [(row.name, row.status) for row in build().plugins()] == [("acme", "loaded")]


def test_a_shadowed_distribution_is_not_listed(site: Path, tmp_path: Path) -> None:
    """The list shows a version that Python would not import."""
    later = tmp_path / "later"
    write_fake_dist(later, "acme", renderer_plugin("zinc"), version="0.9")
    write_fake_dist(site, "acme", renderer_plugin("tin"), version="1.0")
    sys.path.append(str(later))
    try:
        assert [plugin.version for plugin in discover() if plugin.dist == "acme"] == ["1.0"]
    finally:
        sys.path.remove(str(later))


def test_order_of_installation_never_matters(site: Path, build: Build) -> None:
    """Two machines with the same packages list or resolve plugins differently."""
    for name in ("zeta", "alpha", "mid"):
        write_fake_dist(site, name, renderer_plugin(f"{name}-renderer"))
    assert [row.name for row in build().plugins()] == ["alpha", "mid", "zeta"]
