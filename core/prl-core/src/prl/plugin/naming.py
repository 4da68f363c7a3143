"""Compare names of distributions and plugins as installers do."""

from __future__ import annotations

import re
from collections.abc import Iterable


def canonical(name: str) -> str:
    """Return a distribution name in its one canonical spelling (lower case, runs of `-_.` as one `-`)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def same_name(left: str, right: str) -> bool:
    """Whether two names mean one distribution."""
    return canonical(left) == canonical(right)


def split_names(text: str) -> tuple[str, ...]:
    """Split a list of names written with commas or white space."""
    return tuple(part for part in re.split(r"[,\s]+", text) if part)


def quoted(names: Iterable[str]) -> str:
    """Return names for a message: `'a', 'b'`, or `none`."""
    return ", ".join(repr(name) for name in names) or "none"
