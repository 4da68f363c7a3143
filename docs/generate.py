"""Write docs/reference and the README's plugin list from the installed plugins: python docs/generate.py --write.

Without `--write`, exit with 1 where a file is not current. Only the workspace's own distributions under core/ and
plugins/ are described, whatever else is installed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from generators import api, commands, hooks, models, plugins, routes

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT / "docs" / "reference"
README = ROOT / "README.md"
HEAD = "<!-- Written by `make docs`; do not edit. -->\n\n"
MARKS = ("<!-- plugins: written by `make docs` -->\n", "<!-- end of plugins -->\n")


def pages() -> dict[Path, str]:
    """Return every generated file and its text."""
    rows = plugins.workspace_rows(ROOT)
    written = {
        "hooks.md": hooks.page(),
        "commands.md": commands.page(rows),
        "config.md": models.config_page(rows),
        "options.md": models.options_page(rows),
        "api.md": api.page(),
        "routes.md": routes.page(),
    }
    found = {REFERENCE / name: HEAD + text.rstrip() + "\n" for name, text in written.items()}
    found[README] = between_marks(README.read_text(encoding="utf-8"), plugins.table(rows))
    return found


def between_marks(text: str, new: str) -> str:
    """Return the text with what stands between the marks replaced."""
    before, _, rest = text.partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    if not after:
        raise SystemExit(f"{README} lacks the marks {MARKS!r}")
    return f"{before}{MARKS[0]}{new}{MARKS[1]}{after}"


def main(arguments: Sequence[str]) -> int:
    """Write the pages, or name those that are not current."""
    old = [path for path, text in pages().items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    if "--write" not in arguments:
        for path in old:
            print(f"{path.relative_to(ROOT)} is not current; run: make docs", file=sys.stderr)
        return 1 if old else 0
    for path in old:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(pages()[path], encoding="utf-8")
        print(f"wrote {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
