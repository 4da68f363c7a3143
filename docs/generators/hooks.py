"""docs/reference/hooks.md: the hooks and the records they return."""

from __future__ import annotations

import dataclasses
import inspect

from generators.markdown import code, doc, first_line, signature, table
from prl.plugin import Record, hookspecs
from prl.plugin.kinds import hook_records

_INTRO = """# Hooks and records

A plugin is a distribution with one entry point in the group `prl.plugins`, which names a light module. The module
implements the hooks it needs, each marked with `prl.plugin.hookimpl`. A hook takes nothing and returns records; it is
called once per process. A record is a frozen dataclass with keyword-only fields. `target` and `options` are text of the
form `"module:attribute"`, imported on first use.

"""


def page() -> str:
    """Return the page."""
    overview = [
        (f"[`{hook}`](#{hook})", code(record.__name__), code(record.kind), first_line(getattr(hookspecs, hook)))
        for hook, record in hook_records().items()
    ]
    sections = "".join(_section(hook, record) for hook, record in hook_records().items())
    return _INTRO + table(("hook", "record", "kind", "what it offers"), overview) + "\n" + sections


def _section(hook: str, record: type[Record]) -> str:
    function = getattr(hookspecs, hook)
    head = f"## {hook}\n\n```python\n{signature(hook, function)}\n```\n\n{doc(function)}\n\n"
    return f"{head}### {record.__name__}\n\n{doc(record)}\n\n{_fields(record)}\n"


def _fields(record: type[Record]) -> str:
    hints = inspect.get_annotations(record)
    for base in record.__mro__[1:-1]:
        hints = {**inspect.get_annotations(base), **hints}
    rows = []
    for field in dataclasses.fields(record):
        default = "required" if field.default is dataclasses.MISSING else code(repr(field.default))
        rows.append((code(field.name), code(hints[field.name]), default))
    return table(("field", "type", "default"), rows)
