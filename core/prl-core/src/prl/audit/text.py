"""An audit in words: breaks with both sides' tokens, then one table of the client modes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from .audit import RECORDED, Audited
from .breaks import AuditedBreak, Shown
from .totals import ModeTotals, Totals

HEADER = ("MODE", "IDS", "ROLLOUTS", "TURNS", "BREAKS", "SAMPLES/ROLLOUT", "TOKENS", "COST")


def rollout_lines(audited: Audited) -> Iterator[str]:
    """Yield what is told of one rollout: its breaks in each mode, and notes."""
    yield f"{audited.name} ({audited.where}): {_count(audited.turns, 'turn')}, sampled ids {audited.ids}"
    for note in audited.notes:
        yield f"  note: {note}"
    for mode, joined in audited.modes.items():
        told = f"{_count(len(joined.breaks), 'break')}, {_count(joined.samples, 'sample')}, {joined.tokens} tokens"
        yield f"  {mode}: {told}"
        for one in joined.breaks:
            yield from _break_lines(one)


def _break_lines(one: AuditedBreak) -> Iterator[str]:
    side = "in" if one.in_completion else "before"
    inside = "" if one.inside is None else f", {side} what turn {one.inside} sampled"
    yield f"    turn {one.turn}: {one.cause} at token {one.position}{inside}{' (simulated)' if one.simulated else ''}"
    common = "".join(text for _, text in one.common)
    yield f"      sampled   {visible(common)} | {tokens(one.sampled)}"
    yield f"      prompted  {visible(common)} | {tokens(one.prompted)}"


def visible(text: str) -> str:
    """Return a text in one line with everything to be seen: quoted, line feeds and controls as escapes."""
    return json.dumps(text, ensure_ascii=False)


def tokens(shown: Sequence[Shown]) -> str:
    """Return tokens one by one, quoted, with the id of the first; `(end)` where there is none."""
    if not shown:
        return "(end)"
    return f"[{shown[0][0]}] " + " ".join(visible(text) for _, text in shown)


def table(totals: Totals) -> list[list[str]]:
    """Return the rows under `HEADER`."""
    return [_row(mode, sums, totals) for mode, sums in totals.modes.items()]


def _row(mode: str, sums: ModeTotals, totals: Totals) -> list[str]:
    ids = "as recorded" if mode == RECORDED else _ids(totals)
    return [
        mode,
        ids,
        str(sums.rollouts),
        str(sums.turns),
        f"{sums.breaks} ({sums.simulated} simulated)" if sums.simulated else str(sums.breaks),
        f"{sums.samples_per_rollout:.2f}",
        str(sums.tokens),
        f"{sums.cost:.2f}x",
    ]


def _ids(totals: Totals) -> str:
    return next(iter(totals.ids)) if len(totals.ids) == 1 else "mixed"


def cause_lines(totals: Totals) -> Iterator[str]:
    """Yield the causes of each mode's breaks, the most frequent first."""
    for mode, sums in totals.modes.items():
        if sums.causes:
            yield f"{mode}: " + ", ".join(f"{cause} {count}" for cause, count in sums.causes.most_common())


def closing_lines(totals: Totals, server: str) -> Iterator[str]:
    """Yield what has to be known to read the table."""
    known, partly, simulated = (totals.ids[name] for name in ("known", "partly known", "simulated"))
    told = f"known for {known}, partly for {partly}, simulated for {simulated}"
    yield f"{_count(totals.rollouts, 'rollout')}: sampled ids {told}."
    yield f"Servers render with {server}."
    if partly or simulated:
        yield (
            "Simulated ids are the template's own spelling of each answer: they show what the template itself breaks, "
            "not the drift of what a model really samples."
        )
    yield "Cost is tokens in training samples against one sample a rollout that holds every message once."
    for note, count in totals.notes.most_common():
        yield f"Note, {_count(count, 'rollout')}: {note}."
    own = totals.modes.get("renderer")
    if own and own.causes["thinking_stripped"]:
        yield "The renderer mode keeps all reasoning, and extends across user turns, with -o thinking_retention=all."
    if totals.skipped:
        yield f"Skipped {_count(totals.skipped, 'bad line')}."


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
