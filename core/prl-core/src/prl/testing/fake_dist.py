"""Build fake installed distributions: a package and its metadata in a folder that a test puts on the path."""

from __future__ import annotations

import importlib
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from prl.plugin import reset_registry

FITTING = ("prl-core>=0.1,<0.2",)


def write_fake_dist(
    site: Path,
    name: str,
    plugin: str,
    *,
    version: str = "1.0",
    entry: str | None = None,
    module: str | None = None,
    requires: Sequence[str] = FITTING,
    group: str = "prl.plugins",
) -> Path:
    """Install a one-module distribution into `site` and return the module's path.

    `plugin` is the source of the light module, dedented. The entry point's name is the distribution's, and the module's
    is that with underscores, where not given.
    """
    module = module or f"{name.replace('-', '_')}_plugin"
    path = site / Path(*module.split(".")).with_suffix(".py")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(plugin), encoding="utf-8")
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    headers = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    headers += [f"Requires-Dist: {requirement}" for requirement in requires]
    (info / "METADATA").write_text("\n".join(headers) + "\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(f"[{group}]\n{entry or name} = {module}\n", encoding="utf-8")
    (info / "RECORD").write_text("", encoding="utf-8")
    return path


def renderer_plugin(*names: str, head: str = "", tail: str = "", target: str = "json:loads") -> str:
    """Return the source of a plugin that offers renderers; `head` runs on import, `tail` stands after the hook."""
    records = ", ".join(f"RendererEntry(name={name!r}, target={target!r})" for name in names)
    return "\n".join(
        [
            textwrap.dedent(head),
            "from prl.plugin import RendererEntry, hookimpl, ToolParserEntry",
            "@hookimpl",
            "def prl_renderers():",
            f"    return [{records}]",
            textwrap.dedent(tail),
            "",
        ]
    )


@contextmanager
def active_site(site: Path) -> Iterator[Path]:
    """Put a folder of fake distributions first on the path of this process, with a fresh registry; undo both after."""
    site.mkdir(parents=True, exist_ok=True)
    sys.path.insert(0, str(site))
    importlib.invalidate_caches()
    reset_registry()
    try:
        yield site
    finally:
        sys.path.remove(str(site))
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", None) or "").startswith(str(site)):
                del sys.modules[name]
        reset_registry()
