"""Small pieces of Markdown."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Sequence

_ITEM = re.compile(r"^([a-z_0-9]+(?:, [a-z_0-9]+)*): ")
_WIDTH = 100


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; bars and line feeds in cells are escaped."""
    lines = [list(header), ["---"] * len(header), *[[cell_text(cell) for cell in row] for row in rows]]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def cell_text(text: str) -> str:
    """Return a text as one cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def code(text: object) -> str:
    """Return a text as inline code, "" for nothing."""
    return f"`{text}`" if str(text) else ""


def doc(thing: object) -> str:
    """Return a docstring as Markdown; its lines `name: meaning` become a list."""
    prose, notes = split_doc(thing)
    items = "".join(f"- `{name}`: {escaped(meaning)}\n" for name, meaning in notes.items())
    return "\n\n".join(filter(None, (escaped(prose), items.strip())))


def split_doc(thing: object) -> tuple[str, dict[str, str]]:
    """Return a docstring's prose, and the meanings it gives to names in lines `name: meaning`."""
    prose: list[str] = []
    notes: dict[str, str] = {}
    name = ""
    for line in (inspect.getdoc(thing) or "").splitlines():
        found = _ITEM.match(line)
        if found:
            name = found[1]
            notes[name] = line[found.end() :]
        elif name and line.startswith(" "):
            notes[name] += " " + line.strip()
        else:
            name = ""
            prose.append(line)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(prose)).strip(), notes


def escaped(text: str) -> str:
    """Return a text in which `<` outside code is no HTML."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else part.replace("<", "\\<") for part in parts)


def first_line(thing: object) -> str:
    """Return the first paragraph of a docstring on one line."""
    return " ".join(doc(thing).split("\n\n")[0].split())


class _Written(str):
    """An annotation as it is written in the source."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def signature(name: str, function: object) -> str:
    """Return `name(parameters) -> type`, with annotations as they are written, on several lines where it is long."""
    assert callable(function)
    found = inspect.signature(function)
    kept = [
        one.replace(annotation=_written(one.annotation))
        for key, one in found.parameters.items()
        if key not in ("self", "cls")
    ]
    returned = _written(found.return_annotation)
    whole = name + str(found.replace(parameters=kept, return_annotation=returned))
    if len(whole) <= _WIDTH:
        return whole
    arrow = "" if returned is inspect.Signature.empty else f" -> {returned}"
    lines = "".join(f"    {one},\n" for one in _with_star(kept))
    return f"{name}(\n{lines}){arrow}"


def _written(annotation: object) -> object:
    return _Written(annotation) if isinstance(annotation, str) else annotation


def _with_star(parameters: Sequence[inspect.Parameter]) -> Iterator[object]:
    """Yield parameters with the bare `*` before the first keyword-only one."""
    star = any(one.kind is one.VAR_POSITIONAL for one in parameters)
    for one in parameters:
        if one.kind is one.KEYWORD_ONLY and not star:
            star = True
            yield "*"
        yield one
