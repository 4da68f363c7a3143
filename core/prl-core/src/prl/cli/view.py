"""`prl view`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from prl.trajectory import RecordedTrajectory, naming_line, read_trajectories, readable
from prl.types import ConfigError

from .chosen import UNNAMED, Chosen, Named, choose

if TYPE_CHECKING:
    from prl.view import DiffView, RolloutView
    from prl.view.terminal import Line


def run(
    path: str = "-",
    /,
    *,
    named: Named = UNNAMED,
    html: Path | None = None,
    diff: bool = False,
    generation_prompt: bool = False,
    rollout: str | None = None,
    turn: int | None = None,
    limit: int = 10,
    tokens: bool = False,
) -> int:
    """Show rollouts and samples token by token: owners, masks, log-probabilities, breaks.

    Parameters
    ----------
    path
        A JSONL file of rollouts or conversations, a run folder, a JSON file with a conversation, or - for standard
        input.
    named
        What renders conversations and proves the owners of recorded ids, and what servers render with.
    html
        Write one self-contained HTML page there instead.
    diff
        Compare what the renderer makes of each conversation with the chat template; exit with 1 where they differ.
    generation_prompt
        Compare with the prompt for the next answer added.
    rollout
        Show the rollout with this id alone.
    turn
        Show the tokens of this turn alone.
    limit
        How many are shown, or compared; -1 for all.
    tokens
        Print one line per token.
    """
    chosen = choose("view", path, named)
    records = _selected(path, rollout, limit)
    if diff:
        return _show_diffs(_diffs(records, chosen, generation_prompt=generation_prompt), html)
    _show_rollouts(_views(records, chosen, turn), html, by_token=tokens)
    return 0


def _selected(path: str, rollout: str | None, limit: int) -> Iterator[RecordedTrajectory]:
    """Yield the first records, or the one with an id; raise for a line that cannot be read, and where none is left."""
    found = (readable(one) for one in read_trajectories(path))
    if rollout is not None:
        found = (record for record in found if record.name == rollout)
        limit = 1
    shown = 0
    for record in islice(found, None if limit < 0 else limit):
        shown += 1
        yield record
    if not shown:
        what = f"there is no rollout {rollout!r}" if rollout is not None else "there is nothing to show"
        raise ConfigError(what, where=path, next_step="See which there are: prl view FILE --limit -1.")


def _views(records: Iterable[RecordedTrajectory], chosen: Chosen, turn: int | None) -> Iterator[RolloutView]:
    from prl.view import view_trajectory

    for record in records:
        with naming_line(record.where):
            view = view_trajectory(record, chosen.tokenizer, chosen.renderer)
        yield view if turn is None else view.of_turn(turn)


def _diffs(records: Iterable[RecordedTrajectory], chosen: Chosen, *, generation_prompt: bool) -> Iterator[DiffView]:
    from prl.view import TemplateDiff

    differ = TemplateDiff(chosen.tokenizer, chosen.renderer, chosen.template, chosen.keywords)
    for record in records:
        with naming_line(record.where):
            compared = differ.compare(record, generation_prompt=generation_prompt)
        yield compared


def _show_rollouts(views: Iterator[RolloutView], html: Path | None, *, by_token: bool) -> None:
    from prl.view.page import rollout_html
    from prl.view.terminal import LEGEND, rollout_lines

    if html is not None:
        _write_page(html, "prl view", (piece for view in views for piece in rollout_html(view)))
        return
    for view in views:
        _print(rollout_lines(view, by_token=by_token))
        print()
    print(LEGEND)


def _show_diffs(views: Iterator[DiffView], html: Path | None) -> int:
    """Print comparisons, or write their page; return 1 where any side differs."""
    from prl.view.page import diff_html
    from prl.view.terminal import diff_lines

    differing = 0

    def counted() -> Iterator[DiffView]:
        nonlocal differing
        for view in views:
            differing += bool(view.differences)
            yield view

    if html is not None:
        _write_page(html, "prl view --diff", (piece for view in counted() for piece in diff_html(view)))
    else:
        for view in counted():
            _print(diff_lines(view))
    return 1 if differing else 0


def _print(lines: Iterable[Line]) -> None:
    """Print in colour on a terminal, plain into a pipe."""
    from prl.view.terminal import plain

    if not sys.stdout.isatty():
        for line in lines:
            print(plain(line))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    for line in lines:
        console.print(Text.assemble(*line), soft_wrap=True)


def _write_page(target: Path, title: str, body: Iterable[str]) -> None:
    """Write the page piece by piece under a temporary name, then rename it."""
    from prl.view.page import PAGE_END, page_head

    scratch = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with scratch.open("w", encoding="utf-8") as file:
            file.write(page_head(title))
            file.writelines(body)
            file.write(PAGE_END)
        scratch.replace(target)
    except OSError as cause:
        raise ConfigError(
            f"the page cannot be written: {cause}", where=str(target), next_step="Choose a place you may write."
        ) from cause
    finally:
        scratch.unlink(missing_ok=True)
    print(target)
