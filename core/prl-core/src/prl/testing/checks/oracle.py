"""Checks against what is not ours: the vendor's own rendering, and ids that were recorded."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prl.testing.conversations import Style, generate_conversations
from prl.types import Message, RenderError, ToolSpec

from .check import NotApplicable, brief, check, expect, fail
from .renderer_subject import Case, RendererSubject

UPDATE_VARIABLE = "PRL_UPDATE_GOLDEN"
_RECORDED = 40


@check("renderer")
def ids_equal_the_oracle(subject: RendererSubject) -> None:
    """The model is prompted and trained off the format it was made with."""
    if subject.oracle is None:
        raise NotApplicable("no oracle was given")
    compared = 0
    for number, one in enumerate(generate_conversations(4 * subject.fuzzed, seed=21, style=Style())):
        case = Case(one.messages, one.tools, bool(number % 2))
        wanted = subject.oracle(case.messages, case.tools, case.prompt)
        if wanted is None:
            _expect_refused(subject, case)
            continue
        ids = case.ids(subject.with_template_tokens)
        expect(ids == list(wanted), _difference(subject, ids, list(wanted), case))
        compared += 1
    expect(compared > subject.fuzzed, f"the oracle took only {compared} of {4 * subject.fuzzed} conversations")


@check("renderer")
def ids_equal_the_golden_file(subject: RendererSubject) -> None:
    """An edit changes the ids of a format that was right, and nobody sees it."""
    if subject.golden is None:
        raise NotApplicable("no golden file was named")
    if os.environ.get(UPDATE_VARIABLE, "") not in ("", "0"):
        write_golden(subject, subject.golden)
    data = _read_golden(subject.golden)
    templates = sorted(data["templates"])
    expect(
        templates == sorted(subject.templates),
        f"{subject.golden.name} was recorded for the templates {templates}, the renderer's are "
        f"{sorted(subject.templates)}: look at what changed, then record anew with {UPDATE_VARIABLE}=1",
    )
    for number, entry in enumerate(data["conversations"]):
        ids = Case(entry["messages"], entry["tools"], entry["add_generation_prompt"]).ids(subject.renderer)
        wanted = entry["ids"]
        case = Case(entry["messages"], entry["tools"], entry["add_generation_prompt"])
        expect(ids == wanted, f"conversation {number}: {_difference(subject, ids, wanted, case)}")


def write_golden(subject: RendererSubject, path: Path) -> None:
    """Record ids of generated conversations, with the templates they belong to."""
    data = {
        "renderer": subject.name,
        "templates": sorted(subject.templates),
        "conversations": [
            {
                "messages": case.messages,
                "tools": case.tools,
                "add_generation_prompt": case.prompt,
                "ids": case.ids(subject.renderer),
            }
            for case in _spread(subject.cases, _RECORDED)
        ],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(one, ensure_ascii=False) for one in data["conversations"])
    head = json.dumps({key: data[key] for key in ("renderer", "templates")}, ensure_ascii=False)[:-1]
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(f'{head}, "conversations": [\n{lines}\n]}}\n', encoding="utf-8")
    temporary.replace(path)


def _read_golden(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        fail(f"the golden file cannot be read ({error}); record it with {UPDATE_VARIABLE}=1")
    except ValueError as error:
        fail(f"{path} is not JSON: {error}")


def _expect_refused(subject: RendererSubject, case: Case) -> None:
    try:
        case.ids(subject.with_template_tokens)
    except RenderError:
        return
    fail(f"the oracle refuses what is rendered: {brief(case.messages)}")


def _difference(subject: RendererSubject, ids: Sequence[int], wanted: Sequence[int], case: Case) -> str:
    pairs = enumerate(zip(ids, wanted, strict=False))
    place = next((n for n, (a, b) in pairs if a != b), min(len(ids), len(wanted)))
    around = slice(max(0, place - 8), place + 8)
    messages: list[Message] = case.messages
    tools: list[ToolSpec] | None = case.tools
    return (
        f"token {place} of {len(ids)}: {subject.text(ids[around])!r} instead of {subject.text(wanted[around])!r} "
        f"({len(wanted)} tokens) for {brief(messages)}, tools {brief(tools, 120)}"
    )


def _spread(cases: Sequence[Case], count: int) -> list[Case]:
    step = max(1, len(cases) // count)
    return list(cases[::step])[:count]
