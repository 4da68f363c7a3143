"""`prl audit`."""

from __future__ import annotations

import json as json_module
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from prl.trajectory import at_line, read_trajectories
from prl.types import ConfigError, PrlError

from .chosen import Chosen, choose
from .output import print_table

if TYPE_CHECKING:
    from prl.audit import Audited, Sides, Totals

Mode = Literal["chat", "token", "renderer"]
_TOLD_BAD_LINES = 20


def run(
    trajectories: str = "-",
    /,
    *,
    model: str | None = None,
    tokenizer: str | None = None,
    renderer: str = "auto",
    chat_template: str | None = None,
    mode: Annotated[list[Mode] | None, Parameter(name=("--mode", "-m"))] = None,
    show: int = 5,
    json: bool = False,
    skip_bad: bool = False,
    fail_on_breaks: bool = False,
    option: Annotated[list[str] | None, Parameter(name=("--option", "-o"))] = None,
    template_option: Annotated[list[str] | None, Parameter(name=("--template-option", "-t"))] = None,
) -> int:
    """Report where re-tokenising breaks rollouts, why, and the samples and tokens it costs in each client mode.

    Parameters
    ----------
    trajectories
        A JSONL file with one rollout a line (messages, and token ids where they are known), a run folder, or - for
        standard input.
    model
        A directory with tokenizer.json, or a hub id; the model id for auto. A run's own where absent.
    tokenizer
        A directory or hub id, where the tokenizer is not the model's own.
    renderer
        A renderer's name, or auto.
    chat_template
        A file with the chat template that servers render with; the tokenizer's own where absent, else the renderer.
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
    option
        A renderer option as key=value; may be given again.
    template_option
        A keyword of the chat template as key=value; may be given again.
    """
    from prl.audit import MODES, Totals

    chosen = choose(
        "audit",
        trajectories,
        tokenizer=tokenizer,
        model=model,
        renderer=renderer,
        option=option,
        chat_template=chat_template,
        template_option=template_option,
    )
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
            if isinstance(record, ConfigError):
                raise record
            try:
                yield audit(record, sides, chosen.tokenizer.decode, modes=modes)
            except PrlError as error:
                raise at_line(error, record.where) from error
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
