"""Find the line of a key in a TOML text, which the standard parser does not tell."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence

_HEADER = re.compile(r"\s*(\[{1,2})(?P<key>[^\[\]]+)(\]{1,2})\s*(#.*)?$")
_KEY = re.compile(r"""\s*(?P<key>(?:"[^"]*"|'[^']*'|[\w.\-\s])+?)\s*=(?!=)""")

Path = tuple[str | int, ...]


def line_of(text: str, path: Sequence[str | int]) -> int | None:
    """Return the 1-based line that sets a key, or that opens the nearest section above it; None where there is none."""
    lines = {found: number for number, found in _keys(text)}
    wanted = tuple(path)
    while wanted:
        if wanted in lines:
            return lines[wanted]
        wanted = wanted[:-1]
    return None


def _keys(text: str) -> Iterator[tuple[int, Path]]:
    section: Path = ()
    counts: dict[Path, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        header = _HEADER.match(line)
        if header:
            section = _indexed(split_key(header["key"]), counts)
            if header[1] == "[[":
                index = counts[section] = counts.get(section, -1) + 1
                section = (*section, index)
            yield number, section
            continue
        key = _KEY.match(line)
        if key:
            yield number, (*section, *split_key(key["key"]))


def _indexed(path: Sequence[str], counts: dict[Path, int]) -> Path:
    """Insert the current element's index after each part that names an array of tables."""
    found: Path = ()
    for position, part in enumerate(path):
        found = (*found, part)
        if found in counts and position < len(path) - 1:
            found = (*found, counts[found])
    return found


def split_key(key: str) -> tuple[str, ...]:
    """Split a dotted TOML key, quoted parts included; a text that is no key is one part."""
    try:
        parsed = tomllib.loads(f"{key} = 0")
    except tomllib.TOMLDecodeError:
        return (key.strip(),)
    parts = []
    current: object = parsed
    while isinstance(current, dict) and len(current) == 1:
        part, current = next(iter(current.items()))
        parts.append(part)
    return tuple(parts)
