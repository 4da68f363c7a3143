"""Render and parse in every family, against transformers' `apply_chat_template` and the package `renderers`.

Results are compared before anything is timed; a peer that gives another one gets that word instead of a time. The
vendor's template is the judge of ids, the message that was rendered the judge of parsing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from families import FAMILIES, Bench, Turn, as_tuple
from measure import Result, Run, interleave

_HF, _PEER = "transformers", "renderers"


def families_table(repetitions: int, only: Sequence[str]) -> Iterator[str]:
    """Yield the lines of the table: CPU milliseconds, and how many times less CPU ours takes than each peer."""
    yield f"  {'family':16s} {'job':7s} {'tokens':>7s} {_HF:>13s} {_PEER:>22s}  prl (times less than {_HF}, {_PEER})"
    for family in FAMILIES:
        if not only or family.name in only:
            bench = Bench(family)
            yield _render_line(bench, repetitions)
            yield _parse_line(bench, repetitions)


def _render_line(bench: Bench, repetitions: int) -> str:
    work = bench.work(1, 20, result_lines=25)
    expected = bench.template_ids(bench.template_messages(work.messages), work.tools)
    for name, renderer in bench.ours.items():
        if renderer.render(work.messages, tools=work.tools).token_ids != expected:
            raise SystemExit(f"{bench.family.name}, {name}: other ids than the template's; not timed")
    note = _fault(lambda: list(bench.peer.render(work.messages, tools=work.tools).token_ids) == expected, "other ids")
    prepare = partial(_render_runs, bench, has_peer=not note)
    return _line(bench, "render", len(expected), interleave(repetitions, prepare), note)


def _render_runs(bench: Bench, repetition: int, *, has_peer: bool) -> dict[str, Run]:
    work = bench.work(100 + repetition, 20, result_lines=25)
    messages = bench.template_messages(work.messages)
    bench.fresh()
    runs: dict[str, Run] = {_HF: lambda: bench.template_ids(messages, work.tools)}
    if has_peer:
        runs[_PEER] = lambda: bench.peer.render(work.messages, tools=work.tools).token_ids
    for name, renderer in bench.ours.items():
        runs[name] = partial(_render, renderer, work.messages, work.tools)
    return runs


def _render(renderer: Any, messages: Any, tools: Any) -> Any:
    return renderer.render(messages, tools=tools).spans  # attribution is part of the job, as it is for the peer


def _parse_line(bench: Bench, repetitions: int) -> str:
    work = bench.work(2, 12, result_lines=2)
    turns = bench.turns(work)
    if not turns:
        return (
            f"  {bench.family.name:16s} parse    not timed: the template's turns do not continue its generation prompt"
        )
    for name, renderer in bench.ours.items():
        if not _reads(renderer, turns, work.tools):
            raise SystemExit(f"{bench.family.name}, {name}: reads another message than was rendered; not timed")
    note = _fault(lambda: _reads(bench.peer, turns, work.tools), "other message")
    runs: dict[str, Run] = {} if note else {_PEER: lambda: _parse(bench.peer, turns, work.tools)}
    runs |= {name: partial(_parse, renderer, turns, work.tools) for name, renderer in bench.ours.items()}
    tokens = sum(len(completion) for _, completion, _ in turns)
    return _line(bench, "parse", tokens, interleave(3 * repetitions, lambda _: runs), note)


def _parse(renderer: Any, turns: Sequence[Turn], tools: Any) -> list[Any]:
    return [renderer.parse_response(ids, tools=tools, prompt_ids=prompt) for prompt, ids, _ in turns]


def _reads(renderer: Any, turns: Sequence[Turn], tools: Any) -> bool:
    return [as_tuple(parsed) for parsed in _parse(renderer, turns, tools)] == [message for _, _, message in turns]


def _fault(is_right: Callable[[], bool], wrong: str) -> str:
    """Say what is wrong with the peer's answer, "" where it is right; it may refuse the input with any error."""
    try:
        return "" if is_right() else wrong
    except Exception as error:  # noqa: BLE001 (whatever another package raises is its answer)
        return type(error).__name__


def _line(bench: Bench, job: str, tokens: int, results: list[Result], note: str) -> str:
    by_name = {result.name: result for result in results}
    theirs = [by_name[name] for name in (_HF, _PEER) if name in by_name]
    times = {result.name: f"{result.median * 1e3:.1f} ms" for result in theirs}
    ours = [
        f"{name.removeprefix('prl, ')} {by_name[name].median * 1e3:.2f} ms"
        + "".join(f" {by_name[name].times_less_than(their):.1f}x" for their in theirs)
        for name in bench.ours
    ]
    peer = times.get(_PEER) or f"differs: {note}"
    return f"  {bench.family.name:16s} {job:7s} {tokens:7d} {times.get(_HF, '-'):>13s} {peer:>22s}  {'; '.join(ours)}"
