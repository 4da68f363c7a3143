"""Checks of reading completions: parse inverts render, and nothing that a model samples is lost or raises."""

from __future__ import annotations

import random
from functools import partial
from itertools import product
from typing import Any

from prl.types import Message, ParsedResponse, ToolSpec

from .check import brief, check, expect
from .completions import check_stream, check_usable, is_kept, mixed_ids, random_ids
from .material import (
    ARGUMENTS,
    NAME,
    PLACE,
    SAY,
    THOUGHT,
    TOOL,
    as_mapping,
    assistant,
    calling,
    flat,
    schema_of,
    text_of,
    tools_for,
    typed,
    user,
)
from .renderer_subject import RendererSubject, Sampled

_RANDOM = 150
_SPACES = ("", " ", "\n", "\n\n", " \n ")


@check("renderer")
def parse_gives_back_what_was_rendered(subject: RendererSubject) -> None:
    """The next turn's prompt, and the environment, see another message than the model wrote."""
    for turn in subject.ordinary_turns:
        tools = schema_of(turn)
        sampled = subject.stopped(subject.sampled([user()], turn, tools or None))
        parsed = _parse(subject, sampled, tools)
        shown = subject.text(sampled.completion)
        said = text_of(turn)
        expect(parsed.content == said, f"content {said!r} reads back as {parsed.content!r} from {brief(shown)}")
        reasoning = (turn.get("reasoning_content") or turn.get("reasoning") or "") if subject.reasons else ""
        wanted = reasoning if flat(reasoning) in flat(shown) else ""
        thought = parsed.reasoning_content or ""
        expect(thought == wanted, f"reasoning {wanted!r} reads back as {thought!r} from {brief(shown)}")
        expect(parsed.reasoning_complete, f"finished reasoning is reported as cut off: {brief(shown)}")
        expect(not parsed.invalid_tool_calls, f"well-formed calls are reported as malformed: {brief(parsed)}")
        _expect_calls(parsed, turn)


@check("renderer")
def a_parsed_turn_comes_back_the_same(subject: RendererSubject) -> None:
    """White space or a type changes with every turn that is rendered and parsed again."""
    for turn in subject.edge_turns:
        tools = schema_of(turn)
        parsed = _parse(subject, subject.spoken(turn, tools or None), tools)
        _expect_calls(parsed, turn)
        _expect_stable(subject, parsed, tools)


@check("renderer")
def outer_white_space_is_read_as_it_is_rendered(subject: RendererSubject) -> None:
    """The environment sees an answer that the template never renders, or the template one that was never given."""
    spoken = subject.spoken(assistant())
    before, _, after = subject.text(spoken.completion).partition(SAY)
    for left, right in product(_SPACES, _SPACES):
        completion = subject.tokenizer.encode(f"{before}{left}{SAY}{right}{after}")
        content = _parse(subject, Sampled(spoken.prompt, completion), None).content
        expect(SAY in content, f"{left + SAY + right!r} is read as {content!r}")
        # A template may trim its last turn and keep earlier ones, or the other way round.
        talks: tuple[list[Message], ...] = ([user(), assistant(content)], [user(), assistant(content), user()])
        written = [subject.text(subject.renderer.render_ids(talk)) for talk in talks]
        expect(any(content in text for text in written), f"{content!r} is read, and rendered as {written[0]!r}")


def _expect_stable(subject: RendererSubject, parsed: ParsedResponse, tools: list[ToolSpec]) -> None:
    """Render what was parsed, and parse that: nothing may change any more."""
    again = parsed.to_message()
    if subject.takes([user(), again], tools or None):
        reparsed = _parse(subject, subject.spoken(again, tools or None), tools)
        first = (parsed.content, parsed.reasoning_content, _calls(parsed))
        second = (reparsed.content, reparsed.reasoning_content, _calls(reparsed))
        expect(first == second, f"{brief(first)} comes back as {brief(second)}")


@check("renderer")
def cut_completions_lose_nothing(subject: RendererSubject) -> None:
    """A call that was cut off is run with half its arguments, or vanishes from the rollout."""
    for turn in _probe_turns(subject):
        sampled = subject.unstopped(subject.sampled([user()], turn, tools_for([turn])))
        for end in range(len(sampled.completion) + 1):
            cut = Sampled(sampled.prompt, sampled.completion[:end])
            _check_damaged(subject, cut, turn)


@check("renderer")
def malformed_calls_are_never_run(subject: RendererSubject) -> None:
    """One wrong token in a call, and a tool runs without arguments, or the call is gone without a word."""
    subject.needs(subject.takes_calls, "tool calls")
    sampled = subject.stopped(subject.sampled([user()], calling(), [TOOL]))
    for place in range(len(sampled.completion) - 1):
        damaged = [*sampled.completion[:place], *sampled.completion[place + 1 :]]
        parsed = _parse(subject, Sampled(sampled.prompt, damaged), [TOOL])
        shown = brief(subject.text(damaged))
        for one in parsed.tool_calls:
            lost = [key for key, value in ARGUMENTS.items() if not isinstance(value, str) and key not in one.arguments]
            expect(bool(one.arguments) and len(lost) <= 1, f"{shown} runs {one.name} with {one.arguments}")
        kept = is_kept(PLACE, parsed) or PLACE not in subject.text(damaged)
        expect(kept, f"{shown} leaves nothing of the call: {brief(parsed)}")


@check("renderer")
def a_call_drafted_in_reasoning_is_not_run(subject: RendererSubject) -> None:
    """A model tries a call out while it thinks, and a tool runs that it then decided against."""
    subject.needs(subject.takes_calls and subject.reasons, "reasoning before calls")
    turn = calling(reasoning_content=THOUGHT)
    sampled = subject.stopped(subject.sampled([user()], turn, [TOOL]))
    plain = _parse(subject, sampled, [TOOL])
    _expect_calls(plain, turn)
    start, end = plain.tool_calls[0].span
    call = sampled.completion[start:end]
    subject.needs(not {*subject.renderer.get_stop_token_ids()}.intersection(call), "calls that the turn goes on after")
    draft = subject.text(call).replace(PLACE, SAY)
    before, thought, after = subject.text(sampled.completion).partition(THOUGHT)
    ids = subject.tokenizer.encode(f"{before}{thought}\n{draft}\n{thought}{after}")
    parsed = _parse(subject, Sampled(sampled.prompt, ids), [TOOL])
    shown = brief(subject.text(ids))
    expect(_calls(parsed) == _calls_of(turn), f"{shown} runs {brief(_calls(parsed))}")
    expect(not parsed.invalid_tool_calls, f"{shown} holds a malformed call: {brief(parsed)}")
    expect(is_kept(SAY, parsed), f"{shown} leaves nothing of the draft: {brief(parsed)}")


@check("renderer")
def any_ids_can_be_parsed(subject: RendererSubject) -> None:
    """A young policy samples anything, and one sample ends the run."""
    rng = random.Random(5)
    controls = sorted(subject.tokenizer.added_tokens.values())
    for number in range(_RANDOM):
        ids = random_ids(rng, controls, subject.tokenizer.vocab_size, rng.randrange(24))
        prompt = None if number % 3 == 0 else rng.sample(controls, min(2, len(controls)))
        parsed = subject.renderer.parse_response(ids, tools=[TOOL] if number % 2 else None, prompt_ids=prompt)
        check_usable(parsed, repr(ids))


@check("renderer")
def a_stream_ends_in_the_same_message(subject: RendererSubject) -> None:
    """What a rollout records depends on how the network cut the tokens."""
    rng = random.Random(6)
    controls = sorted(subject.tokenizer.added_tokens.values())
    turns = [*subject.ordinary_turns[:30], *subject.edge_turns[:30], *_probe_turns(subject)]
    samples = [subject.sampled([user()], turn, schema_of(turn) or None) for turn in turns]
    completions = [sampled.completion for sampled in samples]
    prompts = [*(sampled.prompt for sampled in samples), None]
    for number in range(len(completions) + _RANDOM):
        ids = completions[number] if number < len(completions) else mixed_ids(rng, completions, controls)
        prompt = prompts[number] if number < len(completions) else rng.choice(prompts)
        make = partial(subject.renderer.stream_parser, tools=[TOOL], prompt_ids=prompt)
        parsed = check_stream(make, ids, rng, subject.text(ids))
        whole = subject.renderer.parse_response(ids, tools=[TOOL], prompt_ids=prompt)
        expect(parsed == whole, f"parse_response gives {brief(whole)}, stream_parser {brief(parsed)}")


@check("renderer")
def nothing_counts_after_the_stop_token(subject: RendererSubject) -> None:
    """Padding after the end of a completion becomes part of the message."""
    controls = sorted(subject.tokenizer.added_tokens.values())
    for turn in _probe_turns(subject):
        sampled = subject.stopped(subject.sampled([user()], turn, tools_for([turn])))
        parsed = _parse(subject, sampled, [TOOL])
        padding = [*controls[:2], *subject.tokenizer.encode("x"), *controls]
        padded = _parse(subject, Sampled(sampled.prompt, [*sampled.completion, *padding]), [TOOL])
        expect(padded == parsed, f"what follows the stop token is read: {brief(padded)}")


@check("renderer")
def cut_reasoning_is_reported(subject: RendererSubject) -> None:
    """Half a thought is taken for an answer."""
    subject.needs(subject.writes_reasoning, "reasoning")
    sampled = subject.sampled([user()], assistant(reasoning_content=THOUGHT))
    words = THOUGHT.split()
    for end in range(len(sampled.completion)):
        text = subject.text(sampled.completion[:end])
        if words[1] in text and words[-1] not in text:
            parsed = _parse(subject, Sampled(sampled.prompt, sampled.completion[:end]), None)
            expect(not parsed.reasoning_complete, f"reasoning cut at {text!r} is reported as complete")
            expect(not parsed.content, f"reasoning cut at {text!r} is read as content {parsed.content!r}")


def _probe_turns(subject: RendererSubject) -> list[Message]:
    turns: list[Message] = [assistant()]
    if subject.writes_reasoning:
        turns.append(assistant(reasoning_content=THOUGHT))
    if subject.takes_calls:
        turns += [calling(), calling(SAY)]
    if subject.takes_calls and subject.writes_reasoning:
        turns.append(calling("", reasoning_content=THOUGHT))
    return [turn for turn in turns if subject.takes([user(), turn], tools_for([turn]))]


def _check_damaged(subject: RendererSubject, cut: Sampled, turn: Message) -> None:
    """Every call that is run is whole, and each text that was sampled whole is kept."""
    parsed = _parse(subject, cut, [TOOL])
    shown = subject.text(cut.completion)
    whole = _calls_of(turn)
    for one in _calls(parsed):
        expect(one in whole, f"{brief(shown)} runs {one}, the whole completion {whole}")
    for probe in (SAY, THOUGHT, PLACE, NAME):
        expect(probe not in shown or is_kept(probe, parsed), f"{probe!r} of {brief(shown)} is not in {brief(parsed)}")


def _parse(subject: RendererSubject, sampled: Sampled, tools: list[ToolSpec] | None) -> ParsedResponse:
    return subject.renderer.parse_response(sampled.completion, tools=tools, prompt_ids=sampled.prompt)


def _expect_calls(parsed: ParsedResponse, turn: Message) -> None:
    read, wanted = _calls(parsed), _calls_of(turn)
    expect(read == wanted, f"calls {brief(wanted)} read back as {brief(read)}")


def _calls(parsed: ParsedResponse) -> list[Any]:
    return [(one.name, typed(one.arguments)) for one in parsed.tool_calls]


def _calls_of(turn: Message) -> list[Any]:
    calls: Any = turn.get("tool_calls") or ()
    return [(one["function"]["name"], typed(as_mapping(one["function"]["arguments"]))) for one in calls]
