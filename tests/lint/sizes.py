"""Measure modules and functions: python tests/lint/sizes.py [FOLDER...]; exit 1 where one is over its limit.

A module has at most 500 lines, a function at most 60, from its `def` line on, without its docstring. What is over 200
and 25 lines is reported as a share: those are the sizes to aim at.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("core", "plugins", "contrib", "tests", "docs")
SKIPPED = {"build", "dist", "__pycache__"}


@dataclass(frozen=True)
class Measure:
    """One module or function, where it stands and how many lines it has."""

    kind: str
    place: str
    lines: int


@dataclass(frozen=True)
class Limit:
    """The size to aim at, and the one that nothing may exceed."""

    aim: int
    most: int


LIMITS = {"module": Limit(200, 500), "function": Limit(25, 60)}


def measure_file(path: Path, shown: str) -> Iterator[Measure]:
    """Yield a module and every function in it, methods and nested functions included."""
    source = path.read_text(encoding="utf-8")
    yield Measure("module", shown, len(source.splitlines()))
    for node in ast.walk(ast.parse(source, filename=str(path))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield Measure("function", f"{shown}:{node.lineno} {node.name}", _lines(node))


def measure(folders: Sequence[Path]) -> list[Measure]:
    """Measure every Python file under the folders."""
    files = sorted(path for folder in folders for path in folder.rglob("*.py"))
    shown = [(path, _below(path)) for path in files]
    kept = [(path, parts) for path, parts in shown if not any(part in SKIPPED or part[0] == "." for part in parts[:-1])]
    return [found for path, parts in kept for found in measure_file(path, "/".join(parts))]


def too_long(found: Sequence[Measure]) -> list[Measure]:
    """Return what is over its limit."""
    return [one for one in found if one.lines > LIMITS[one.kind].most]


def summary(found: Sequence[Measure]) -> list[str]:
    """Say how many there are of each kind, and how many are over the size to aim at."""
    lines = []
    for kind, limit in LIMITS.items():
        sizes = sorted(one.lines for one in found if one.kind == kind)
        over = sum(size > limit.aim for size in sizes)
        share = 100 * over / max(len(sizes), 1)
        middle = sizes[len(sizes) // 2] if sizes else 0
        lines.append(f"{len(sizes)} {kind}s, median {middle} lines; over {limit.aim}: {over} ({share:.1f} %)")
    return lines


def _lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    whole = (node.end_lineno or node.lineno) - node.lineno + 1
    if ast.get_docstring(node, clean=False) is None:
        return whole
    text = node.body[0]
    return whole - ((text.end_lineno or text.lineno) - text.lineno + 1)


def _below(path: Path) -> tuple[str, ...]:
    return path.relative_to(ROOT).parts if path.is_relative_to(ROOT) else path.parts[-1:]


def main(arguments: Sequence[str]) -> int:
    """Print the measures of the given folders, else of the workspace."""
    found = measure([Path(one).resolve() for one in arguments] or [ROOT / folder for folder in FOLDERS])
    print("\n".join(summary(found)))
    over = too_long(found)
    for one in over:
        print(f"{one.place}: a {one.kind} of {one.lines} lines; at most {LIMITS[one.kind].most}", file=sys.stderr)
    return 1 if over else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
