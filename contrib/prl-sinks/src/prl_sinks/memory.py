"""What a sink keeps in the run folder, so that a resumed run goes on where it was."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path

FOLDER = "sinks"


def run_id(run_dir: Path, sink: str) -> tuple[str, bool]:
    """Return the run's id in another program, and whether it was there before; a cleared folder gets a new one."""
    path = run_dir / FOLDER / f"{sink}.json"
    if path.is_file():
        return str(json.loads(path.read_text(encoding="utf-8"))["id"]), True
    made = secrets.token_hex(6)
    path.parent.mkdir(parents=True, exist_ok=True)
    work = path.with_name(f".{path.name}.new")
    work.write_text(json.dumps({"id": made}), encoding="utf-8")
    os.replace(work, path)
    return made, False
