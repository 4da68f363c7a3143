"""Checks of the bridge: it extends what was sampled, verbatim, or says that it cannot."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, cast

from prl.contracts import Renderer
from prl.types import NO_MESSAGE, Message, PromptIds, RenderedTokens, RenderError, ToolSpec

from .check import brief, check, expect
from .material import ASK, ASK_AGAIN, SAY, THOUGHT, TOOL, assistant, calling, result, system, user
from .renderer_subject import RendererSubject, Sampled
from .rendering import check_spans

_RETENTIONS = (None, "tool_cycle", "all")


class Step(NamedTuple):
    """A sampled turn in its history, and the messages that answer it."""

    history: list[Message]
    turn: Message
    new: list[Message]
    tools: list[ToolSpec] | None

    @property
    def before(self) -> list[Message]:
        """The conversation up to and including the sampled turn."""
        return [*self.history, self.turn]


@check("renderer")
def a_bridge_extends_the_exact_ids(subject: RendererSubject) -> None:
    """The trainer sees other tokens than were sampled, and every log-probability is for another text."""
    for step in _steps(subject):
        sampled = _whole_turn(subject, step, subject.renderer)
        prompt, completion = list(sampled.prompt), list(sampled.completion)
        cuts = [completion[:end] for end in {len(completion), max(0, len(completion) - 1), len(completion) // 2, 0}]
        for ids in (*cuts, subject.respelled(completion)):
            given = list(ids)
            bridged = _bridge(subject.renderer, Sampled(prompt, ids), step)
            expect((prompt, ids) == (sampled.prompt, given), "the bridge changed the ids it was given")
            if bridged is not None:
                _check_extension(bridged, prompt, ids, step)
            shared = subject.renderer.bridge_to_next_turn(
                PromptIds(prompt), ids, step.new, tools=step.tools, history=step.before
            )
            same = (shared and shared.token_ids) == (bridged and bridged.token_ids)
            expect(same, "the bridge of PromptIds, which sessions give, is not that of the same ids in a list")


@check("renderer")
def a_bridge_equals_the_full_render(subject: RendererSubject) -> None:
    """A rollout's later prompts are not what the vendor's template writes."""
    bridged_any = False
    for retention in _RETENTIONS:
        renderer = subject.make() if retention is None else subject.make(thinking_retention=retention)
        for step in _steps(subject):
            sampled = _whole_turn(subject, step, renderer)
            bridged = _bridge(renderer, sampled, step)
            bridged_any = bridged_any or bridged is not None
            full = renderer.render_ids([*step.before, *step.new], tools=step.tools, add_generation_prompt=True)
            _compare(subject, bridged, full, sampled, retention)
    expect(bridged_any, "no turn can be bridged")


@check("renderer")
def everything_is_bridged_where_all_is_kept(subject: RendererSubject) -> None:
    """thinking_retention="all" (or a format that rewrites nothing) still starts a new sample at every turn."""
    for renderer in (subject.make(thinking_retention="all"), subject.renderer):
        if renderer is subject.renderer and not renderer.is_prefix_stable:
            continue
        for step in _steps(subject):
            bridged = _bridge(renderer, _whole_turn(subject, step, renderer), step)
            expect(bridged is not None, f"{brief(step.new)} after {brief(step.turn)} is not bridged")


@check("renderer")
def a_cut_turn_is_closed_once(subject: RendererSubject) -> None:
    """After a truncated turn the model sees its own turn run on, or two ends of it."""
    renderer = subject.make(thinking_retention="all")
    stops = renderer.get_stop_token_ids()
    for step in _steps(subject, reasoning=False):
        sampled = subject.unstopped(subject.sampled(step.history, step.turn, step.tools, renderer))
        cut = Sampled(sampled.prompt, sampled.completion[: _place_in(subject, sampled.completion, ("Val", "Gdansk"))])
        bridged = _bridge(renderer, cut, step)
        expect(bridged is not None, f"a turn cut at {brief(subject.text(cut.completion))} is not bridged")
        closed = [_bridge(renderer, Sampled(cut.prompt, [*cut.completion, stop]), step) for stop in stops]
        same = any(_differ_in_the_stop(subject, bridged, one, len(cut.prompt) + len(cut.completion)) for one in closed)
        cut_on, stopped_on = _tail(subject, bridged, cut), _tail(subject, closed[0], cut)
        expect(same, f"after a cut the turn goes on as {cut_on!r}, after a stop as {stopped_on!r}")


@check("renderer")
def cut_reasoning_is_closed_once(subject: RendererSubject) -> None:
    """After a truncated thought the user's next words are read as more of it."""
    subject.needs(subject.writes_reasoning, "reasoning")
    renderer = subject.make(thinking_retention="all")
    stops = renderer.get_stop_token_ids()
    step = Step([user()], assistant(reasoning_content=THOUGHT), [user(ASK_AGAIN)], None)
    sampled = subject.sampled(step.history, step.turn, None, renderer)
    end = _place_in(subject, sampled.completion, ("ivory",))
    cut = Sampled(sampled.prompt, sampled.completion[:end])
    bridged = _bridge(renderer, cut, step)
    expect(bridged is not None, "a turn cut in its reasoning is not bridged")
    ids = bridged.token_ids[len(cut.prompt) :] if bridged is not None else []
    close = next((n for n in range(end, len(ids)) if ids[n] in stops), len(ids) - 1)
    parsed = renderer.parse_response(ids[: close + 1], prompt_ids=cut.prompt)
    expect(parsed.reasoning_complete, f"reasoning stays open in {subject.text(ids)!r}")
    expect(not parsed.content, f"the close is read as content {parsed.content!r} in {subject.text(ids)!r}")


@check("renderer")
def an_empty_completion_is_handled(subject: RendererSubject) -> None:
    """An engine that returns nothing ends the run."""
    prompt = subject.renderer.render_ids([user()], add_generation_prompt=True)
    parsed = subject.renderer.parse_response([], prompt_ids=prompt)
    expect(parsed.content == "" and not parsed.tool_calls, f"an empty completion is read as {brief(parsed)}")
    step = Step([user()], assistant(""), [user(ASK_AGAIN)], None)
    bridged = _bridge(subject.renderer, Sampled(prompt, []), step)
    if bridged is not None:
        _check_extension(bridged, prompt, [], step)


@check("renderer")
def a_bridge_refuses_assistant_messages(subject: RendererSubject) -> None:
    """Text that was never sampled enters the rollout as if the model had written it."""
    step = Step([user()], assistant(), [user(ASK_AGAIN)], None)
    sampled = _whole_turn(subject, step, subject.renderer)
    for new in ([assistant()], [user(ASK_AGAIN), assistant()], [assistant(), user(ASK_AGAIN)], []):
        bridged = subject.renderer.bridge_to_next_turn(*sampled, new, history=step.before)
        expect(bridged is None, f"{brief(new)} is bridged")


@check("renderer")
def a_bridge_refuses_what_a_render_refuses(subject: RendererSubject) -> None:
    """A message that the format has no place for is lost in a rollout, or speaks with another's voice."""
    step = Step([user()], assistant(), [], None)
    prompt, completion = _whole_turn(subject, step, subject.renderer)
    for new in ([{"role": "narrator", "content": "A vermilion curtain."}], [system()], [system(), user(ASK_AGAIN)]):
        messages = cast(list[Message], new)
        try:
            bridged = subject.renderer.bridge_to_next_turn(prompt, completion, messages, history=step.before)
        except RenderError:
            continue
        takes = bridged is None or subject.takes([*step.before, *messages])
        expect(takes, f"{brief(new)} is bridged, and a render refuses it")


@check("renderer")
def history_only_informs_a_bridge(subject: RendererSubject) -> None:
    """Two callers, one of whom passes `history`, build different prompts for one rollout."""
    for step in _steps(subject):
        sampled = _whole_turn(subject, step, subject.renderer)
        told = _bridge(subject.renderer, sampled, step)
        untold = subject.renderer.bridge_to_next_turn(*sampled, step.new, tools=step.tools)
        if told is not None and untold is not None:
            expect(told.token_ids == untold.token_ids, f"other ids without history for {brief(step.new)}")


def _steps(subject: RendererSubject, *, reasoning: bool = True) -> Iterator[Step]:
    """Yield what rollouts do: another question, a tool's answer, with and without reasoning."""
    thoughts = [{}, {"reasoning_content": THOUGHT}] if subject.reasons and reasoning else [{}]
    for thought in thoughts:
        yield Step([user()], assistant(**thought), [user(ASK_AGAIN)], None)
        yield Step([user(), assistant("Yes."), user()], assistant(**thought), [user(ASK_AGAIN)], None)
        if subject.takes_results:
            yield Step([user()], calling(**thought), [result()], [TOOL])
            yield Step([user()], calling(SAY, **thought), [result()], [TOOL])
            if subject.takes([user(), calling(), result(), user(ASK_AGAIN)], [TOOL]):
                yield Step([user()], calling(**thought), [result(), user(ASK_AGAIN)], [TOOL])


def _whole_turn(subject: RendererSubject, step: Step, renderer: Renderer) -> Sampled:
    """Return the turn as a model ends it: on its stop token, which may be the one that opens the next turn."""
    sampled = subject.sampled(step.history, step.turn, step.tools, renderer)
    stops = renderer.get_stop_token_ids()
    full = renderer.render_ids([*step.before, *step.new], tools=step.tools, add_generation_prompt=True)
    end = len(sampled.prompt) + len(sampled.completion)
    follows = full[end] if len(full) > end and full[:end] == [*sampled.prompt, *sampled.completion] else None
    return subject.stopped(sampled, follows if follows in stops else None)


def _bridge(renderer: Renderer, sampled: Sampled, step: Step) -> RenderedTokens | None:
    return renderer.bridge_to_next_turn(*sampled, step.new, tools=step.tools, history=step.before)


def _check_extension(bridged: RenderedTokens, prompt: list[int], completion: list[int], step: Step) -> None:
    end = len(prompt) + len(completion)
    expect(bridged.token_ids[:end] == [*prompt, *completion], "a bridge does not begin with prompt and completion")
    expect(len(bridged.token_ids) > end, "a bridge adds nothing")
    check_spans(bridged, [str(message["role"]) for message in step.new])
    owners = bridged.message_indices
    expect(set(owners[:end]) <= {NO_MESSAGE}, "earlier tokens belong to one of the new messages")
    wanted = set(range(len(step.new)))
    expect(set(owners[end:]) - {NO_MESSAGE} == wanted, f"new tokens belong to {set(owners[end:])}, not to {wanted}")
    sampled = [n for n, on in enumerate(bridged.sampled_mask) if on]
    expect(
        all(len(prompt) <= n < end for n in sampled), "tokens that the bridge added, or the prompt's, count as sampled"
    )


def _compare(
    subject: RendererSubject, bridged: RenderedTokens | None, full: list[int], sampled: Sampled, retention: str | None
) -> None:
    """Where the template leaves the turn as it was, the bridge is its render; where it drops words, there is none."""
    before = [*sampled.prompt, *sampled.completion]
    if bridged is None:
        return
    if full[: len(before)] == before:
        wanted = subject.text(full[len(before) :])
        expect(bridged.token_ids == full, f"bridged {_tail(subject, bridged, sampled)!r}, rendered {wanted!r}")
        return
    said, kept = subject.text(before), subject.text(full)
    dropped = [words for words in (THOUGHT, SAY, ASK) if said.count(words) > kept.count(words)]
    expect(retention == "all" or not dropped, f"the template drops {dropped}, and the turn is bridged all the same")


def _place_in(subject: RendererSubject, ids: list[int], words: tuple[str, ...]) -> int:
    """Return how many ids it takes to write the first of the words that is there."""
    found = (n for word in words for n in range(len(ids)) if word in subject.text(ids[:n]))
    place = next(found, None)
    expect(place is not None, f"none of {words} is sampled in {subject.text(ids)!r}")
    return place or 0


def _differ_in_the_stop(
    subject: RendererSubject, cut: RenderedTokens | None, stopped: RenderedTokens | None, end: int
) -> bool:
    """Whether both go on alike after one control token: the stop, or what the template closes earlier turns by."""
    if cut is None or stopped is None:
        return False
    added = set(subject.tokenizer.added_tokens.values())
    return cut.token_ids[end] in added and cut.token_ids[end + 1 :] == stopped.token_ids[end + 1 :]


def _tail(subject: RendererSubject, bridged: RenderedTokens | None, sampled: Sampled) -> str:
    return (
        "nothing"
        if bridged is None
        else subject.text(bridged.token_ids[len(sampled.prompt) + len(sampled.completion) :])
    )
