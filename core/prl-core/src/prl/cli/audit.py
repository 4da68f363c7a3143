"""`prl audit`."""

from __future__ import annotations

import json as json_module
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from prl.trajectory import naming_line, read_trajectories, readable
from prl.types import PrlError

from .chosen import UNNAMED, Chosen, Named, choose
from .output import print_table

if TYPE_CHECKING:
    from prl.audit import Audited, Sides, Totals

Mode = Literal["chat", "token", "renderer"]
_TOLD_BAD_LINES = 20


def run(
    trajectories: str = "-",
    /,
    *,
    named: Named = UNNAMED,
    mode: Annotated[list[Mode] | None, Parameter(name=("--mode", "-m"))] = None,
    show: int = 5,
    json: bool = False,
    skip_bad: bool = False,
    fail_on_breaks: bool = False,
) -> int:
    """Report where re-tokenising breaks rollouts, why, and the samples and tokens it costs in each client mode.

    Parameters
    ----------
    trajectories
        A JSONL file with one rollout a line (messages, and token ids where they are known), a run folder, or - for
        standard input.
    named
        What renders, and what servers render with.
    mode
        A client mode to audit: chat, token or renderer; may be given again. All of them where absent.
    show
        How many rollouts with breaks are shown in full; -1 for all.
    json
        Print JSON lines: one object a rollout, and a last one with the summary.
    skip_bad
        Count lines that cannot be read or rendered, and go on.
    fail_on_breaks
        Exit with 1 where anything breaks.
    """
    from prl.audit import MODES, Totals

    chosen = choose("audit", trajectories, named)
    sides = _sides(chosen)
    totals = Totals()
    told = _print_rollout_json if json else _Shower(show)
    for audited in _audited(trajectories, sides, chosen, mode or list(MODES), totals, skip_bad=skip_bad):
        totals.add(audited)
        told(audited)
    _print_summary(totals, sides, json=json)
    return 1 if fail_on_breaks and totals.breaks else 0


def _sides(chosen: Chosen) -> Sides:
    from prl.audit import RendererServer, Sides, TemplateServer

    if chosen.template is None:
        return Sides(chosen.renderer, RendererServer(chosen.plain))
    server = TemplateServer(chosen.tokenizer, chosen.template, chosen.told, chosen.keywords)
    return Sides(chosen.renderer, server)


def _audited(
    source: str, sides: Sides, chosen: Chosen, modes: Sequence[str], totals: Totals, *, skip_bad: bool
) -> Iterator[Audited]:
    """Yield the figures of each line; a bad one raises, or is counted."""
    from prl.audit import audit

    for record in read_trajectories(source):
        try:
            rollout = readable(record)
            with naming_line(rollout.where):
                audited = audit(rollout, sides, chosen.tokenizer.decode, modes=modes)
            yield audited
        except PrlError as error:
            if not skip_bad:
                raise
            totals.skipped += 1
            if totals.skipped <= _TOLD_BAD_LINES:
                print(f"prl: skipped: {error}", file=sys.stderr)


class _Shower:
    """Prints the first rollouts that have breaks."""

    def __init__(self, limit: int) -> None:
        self._left = limit

    def __call__(self, audited: Audited) -> None:
        from prl.audit.text import rollout_lines

        if self._left == 0 or not any(joined.breaks for joined in audited.modes.values()):
            return
        self._left -= 1
        print("\n".join(rollout_lines(audited)), end="\n\n")


def _print_rollout_json(audited: Audited) -> None:
    record: dict[str, Any] = {**asdict(audited), "ids": audited.ids}
    print(json_module.dumps({"rollout": record}, ensure_ascii=False))


def _print_summary(totals: Totals, sides: Sides, *, json: bool) -> None:
    from prl.audit.text import HEADER, cause_lines, closing_lines, table

    if json:
        print(json_module.dumps({"summary": {**totals.to_dict(), "server": sides.server.told}}, ensure_ascii=False))
        return
    if totals.modes:
        print_table(HEADER, table(totals))
        print()
    for line in (*cause_lines(totals), *closing_lines(totals, sides.server.told)):
        print(line)
