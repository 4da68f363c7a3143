"""Find installed plugins from metadata alone: nothing of theirs is imported here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlparse

from .naming import canonical, same_name

GROUP = "prl.plugins"
CORE_PLUGIN = "prl-core"
LEFT_OVER = "~"
"""How pip renames what it is about to replace; where it was killed, such folders stay, and pip passes over them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPlugin:
    """One entry point of the group, as its distribution's metadata states it.

    `value` is the light module, `origin` where the distribution lives. `problem` says why the metadata are unusable.
    """

    name: str
    value: str
    dist: str
    version: str
    requires: tuple[str, ...] = ()
    origin: str = ""
    problem: str = ""

    def __str__(self) -> str:
        return f"{self.name} ({self.dist} {self.version} at {self.origin})"


def discover() -> list[FoundPlugin]:
    """Return every installed plugin, sorted by name, so that installation order never matters."""
    found: dict[str, list[FoundPlugin]] = {}
    for dist in metadata.distributions():
        if _folder(dist).name.startswith(LEFT_OVER):
            continue
        plugins = list(_plugins_of(dist))
        if not plugins:
            continue
        key = canonical(plugins[0].dist)
        if key not in found:
            found[key] = plugins
        elif found[key][0].origin == plugins[0].origin and found[key][0].version != plugins[0].version:
            found[key] = [_installed_twice(plugin, plugins[0].version) for plugin in found[key]]
    rows = [plugin for plugins in found.values() for plugin in plugins]
    if not any(same_name(plugin.dist, CORE_PLUGIN) for plugin in rows):
        rows.append(_core_without_metadata())
    return sorted(rows, key=lambda plugin: (plugin.name, plugin.dist, plugin.value))


def _plugins_of(dist: metadata.Distribution) -> Iterator[FoundPlugin]:
    try:
        text = dist.read_text("entry_points.txt")
        if text is None or f"[{GROUP}]" not in text.replace(" ", "") or _is_shadowed(dist):
            return
        # Once each: some editable installs of setuptools write every entry point twice.
        entries = dict.fromkeys((entry.name, entry.value) for entry in dist.entry_points if entry.group == GROUP)
        name, version, requires = dist.name, dist.version, tuple(dist.requires or ())
    except Exception as cause:  # noqa: BLE001 - the loader's own: any metadata fault becomes a row, never a crash
        yield _unreadable(dist, cause)
        return
    origin = _origin(dist)
    for entry_name, value in entries:
        yield FoundPlugin(name=entry_name, value=value, dist=name, version=version, requires=requires, origin=origin)


def _is_shadowed(dist: metadata.Distribution) -> bool:
    """Whether a distribution of the same name stands earlier on the path, so that its modules are the ones imported."""
    first = metadata.distribution(dist.name)
    return str(first.locate_file("")) != str(dist.locate_file(""))


def _folder(dist: metadata.Distribution) -> Path:
    """Return the folder of the metadata, where the distribution tells: one that is no folder can locate no file."""
    return Path(str(getattr(dist, "_path", "")))


def _unreadable(dist: metadata.Distribution, cause: Exception) -> FoundPlugin:
    folder = _folder(dist)
    stem, _, version = folder.name.removesuffix(".dist-info").removesuffix(".egg-info").partition("-")
    return FoundPlugin(
        name=stem,
        value="",
        dist=stem,
        version=version,
        origin=str(folder),
        problem=f"its metadata cannot be read: {type(cause).__name__}: {cause}",
    )


def _installed_twice(plugin: FoundPlugin, other: str) -> FoundPlugin:
    return FoundPlugin(
        name=plugin.name,
        value=plugin.value,
        dist=plugin.dist,
        version=plugin.version,
        origin=plugin.origin,
        problem=f"the metadata of two versions ({plugin.version} and {other}) lie in one place",
    )


def _core_without_metadata() -> FoundPlugin:
    """Return core's own plugin where core runs from a source tree that was never installed."""
    from prl import __version__

    origin = str(Path(__file__).parents[2])
    return FoundPlugin(name=CORE_PLUGIN, value="prl.builtin", dist=CORE_PLUGIN, version=__version__, origin=origin)


def _origin(dist: metadata.Distribution) -> str:
    """Return the project folder of an editable install, else the folder that holds the distribution."""
    text = dist.read_text("direct_url.json")
    if text:
        try:
            direct = json.loads(text)
            if direct.get("dir_info", {}).get("editable"):
                return unquote(urlparse(direct["url"]).path)
        except (ValueError, KeyError, AttributeError):
            pass  # the file is optional: without it the site folder is the origin
    return str(dist.locate_file("")).rstrip("/")
