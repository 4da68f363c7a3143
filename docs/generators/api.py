"""docs/reference/api.md: the public names of prl, and what a renderer and a format are."""

from __future__ import annotations

import inspect

import prl
from generators.markdown import doc, signature
from prl import contracts, parse, render
from prl.contracts import Renderer, StreamParser
from prl.render import ChatFormat, Writer

_INTRO = """# Python API

`import prl` brings the names of the first section. The others are what plugins are written with.

"""


def page() -> str:
    """Return the page."""
    text = _INTRO + "## prl\n\n" + "".join(_entry(name, getattr(prl, name)) for name in prl.__all__)
    text += "## Contracts of a renderer\n\n" + "".join(_entry(one.__name__, one) for one in (Renderer, StreamParser))
    text += "## prl.render, for formats\n\n" + "".join(_entry(one.__name__, one) for one in (ChatFormat, Writer))
    text += "## More\n\nAll contracts (`prl.contracts`): " + _names(contracts)
    text += "\n\nHelpers for codecs (`prl.parse`): " + _names(parse)
    return text + "\n\nHelpers for formats (`prl.render`): " + _names(render) + "\n"


def _names(module: object) -> str:
    return ", ".join(f"`{name}`" for name in getattr(module, "__all__", ())) + "."


def _entry(name: str, thing: object) -> str:
    if not inspect.isclass(thing):
        return f"### {name}\n\n```python\n{signature(name, thing)}\n```\n\n{doc(thing)}\n\n"
    return f"### {name}\n\n{doc(thing)}\n\n" + "".join(_member(key, value) for key, value in vars(thing).items())


def _member(name: str, value: object) -> str:
    """Return a public method or property of a class."""
    if name.startswith("_"):
        return ""
    if isinstance(value, property) or hasattr(value, "func"):
        getter = value.fget if isinstance(value, property) else value.func  # type: ignore[attr-defined]
        kind = inspect.signature(getter).return_annotation
        return f"`{name}: {str(kind).strip(chr(39))}`\n: {_indented(doc(getter))}\n\n"
    if isinstance(value, classmethod | staticmethod):
        value = value.__func__
    if not inspect.isfunction(value):
        return ""
    return f"```python\n{signature(name, value)}\n```\n\n{doc(value)}\n\n"


def _indented(text: str) -> str:
    return text.replace("\n", "\n  ")
