"""Checks across processes: a renderer is rebuilt by name, and renders the same ids there."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .check import NotApplicable, check, expect
from .renderer_subject import Case, RendererSubject

_LIMIT_S = 120
_SEEDS = ("0", "1")


@check("renderer")
def another_process_gives_the_same_ids(subject: RendererSubject) -> None:
    """The orchestrator renders one prompt and the trainer another, as the order of a set differs between them."""
    if subject.installed is None:
        raise NotApplicable("no new process can find this renderer: it is not installed, or not on a byte tokenizer")
    cases = subject.cases[:60]
    mine = digest(case.ids(subject.renderer) for case in cases)
    for seed in _SEEDS:
        theirs = _ask_child(subject, cases, seed)
        expect(theirs == mine, f"a process with PYTHONHASHSEED={seed} renders other ids")


def digest(all_ids: Iterable[Sequence[int]]) -> str:
    """Return the sha256 of several renders."""
    return hashlib.sha256(json.dumps([list(ids) for ids in all_ids]).encode()).hexdigest()


def _ask_child(subject: RendererSubject, cases: Sequence[Case], seed: str) -> str:
    request = {
        "name": subject.installed,
        "options": dict(subject.options),
        "control_tokens": list(subject.control_tokens),
        "cases": [[case.messages, case.tools, case.prompt] for case in cases],
    }
    done = subprocess.run(
        [sys.executable, "-m", "prl.testing.checks.processes"],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        check=False,
    )
    expect(done.returncode == 0, f"a new process cannot render: {done.stderr[-600:]}")
    return done.stdout.strip()


def _answer(request: Mapping[str, Any]) -> str:
    from prl.api import create_renderer
    from prl.testing.byte_tokenizer import ByteTokenizer
    from prl.tokenizer import as_tokenizer

    tokenizer = as_tokenizer(ByteTokenizer(request["control_tokens"]))
    renderer = create_renderer(tokenizer, request["name"], **request["options"])
    return digest(Case(messages, tools, prompt).ids(renderer) for messages, tools, prompt in request["cases"])


if __name__ == "__main__":
    print(_answer(json.load(sys.stdin)))
