"""Checks of what is sampled: exactly what the model writes, its stop token included."""

from __future__ import annotations

from prl.types import NO_MESSAGE, Kind, Message, RenderedTokens

from .check import brief, check, expect
from .material import ASK_AGAIN, SAY, THOUGHT, assistant, calling, result, tools_for, user
from .renderer_subject import RendererSubject


@check("renderer")
def the_generation_prompt_is_never_sampled(subject: RendererSubject) -> None:
    """The loss trains tokens that the model is given, not those it writes."""
    renderer = subject.renderer
    opened = renderer.render([user()], add_generation_prompt=True)
    sampled = [token for token, on in zip(opened.token_ids, opened.sampled_mask, strict=True) if on]
    expect(not sampled, f"a prompt has sampled tokens: {subject.text(sampled)!r}")
    asked = renderer.render_ids([user()])
    expect(len(opened.token_ids) > len(asked), "add_generation_prompt adds nothing")
    owner = opened.message_indices[-1]
    expect(owner == NO_MESSAGE, f"the generation prompt belongs to message {owner}")
    for turn in _turns(subject):
        whole = renderer.render([user(), turn], tools=tools_for([turn]))
        _check_border(renderer.render_ids([user()], tools=tools_for([turn]), add_generation_prompt=True), whole)
    opener = renderer.render([user(), assistant()])
    expect(not opener.sampled_mask[len(asked)], "the token that opens an assistant turn is marked as sampled")


@check("renderer")
def a_turn_is_sampled_to_its_stop_token(subject: RendererSubject) -> None:
    """A model that is never trained to stop does not stop."""
    stops = set(subject.renderer.get_stop_token_ids())
    for turn in _turns(subject):
        follow = result() if turn.get("tool_calls") else user(ASK_AGAIN)
        ends = [_sampled_end(subject, [user(), turn, *more], stops) for more in ([], [follow])]
        # A format that stops on the next turn's opener shows its stop only before another turn; one whose template
        # closes earlier turns by another token shows it only in the last.
        expect(any(ends), f"the sampled tokens of {brief(turn)} end without a stop token")


def _sampled_end(subject: RendererSubject, messages: list[Message], stops: set[int]) -> bool:
    """Whether the sampled tokens end in a stop token; fail where they leave out a part of the turn."""
    whole = subject.renderer.render(messages, tools=tools_for(messages))
    sampled = [n for n, on in enumerate(whole.sampled_mask) if on]
    text = subject.text([whole.token_ids[n] for n in sampled])
    gap = bool(sampled) and len(sampled) != sampled[-1] - sampled[0] + 1
    expect(bool(sampled) and not gap, f"the sampled tokens of one turn have a gap: {text!r}")
    body = messages[1].get("content")
    expect(not isinstance(body, str) or body in text, f"the content {body!r} is not all sampled: {text!r}")
    return whole.token_ids[sampled[-1]] in stops


@check("renderer")
def scaffold_after_the_stop_is_not_sampled(subject: RendererSubject) -> None:
    """The loss trains what an engine never lets the model write."""
    stops = set(subject.renderer.get_stop_token_ids())
    whole = subject.renderer.render([user(), assistant()])
    places = [n for n, token in enumerate(whole.token_ids) if token in stops and whole.sampled_mask[n]]
    if places:
        after = list(zip(whole.token_ids, whole.sampled_mask, strict=True))[places[-1] + 1 :]
        late = subject.text([token for token, on in after if on])
        expect(not late, f"sampled after the stop token: {late!r}")


@check("renderer")
def the_loss_is_on_assistant_turns(subject: RendererSubject) -> None:
    """Users' and tools' words are trained as if the model had said them."""
    for case in subject.cases[:60]:
        whole = subject.renderer.render(case.messages, tools=case.tools, add_generation_prompt=case.prompt)
        wanted = [
            on and owner >= 0 and case.messages[owner]["role"] == "assistant"
            for on, owner in zip(whole.sampled_mask, whole.message_indices, strict=True)
        ]
        expect(whole.loss_mask() == wanted, "loss_mask() is not the sampled tokens of assistant turns")
        turns = {n for n, message in enumerate(case.messages) if message["role"] == "assistant"}
        trained = {span.message for span in whole.spans or () if span.kind & Kind.SAMPLED}
        expect(turns <= trained, f"assistant turns {sorted(turns - trained)} have no sampled token")


def _check_border(prompt: list[int], whole: RenderedTokens) -> None:
    """Where the turn begins with the generation prompt, sampling begins at its end."""
    if whole.token_ids[: len(prompt)] == prompt:
        first = whole.sampled_mask.index(True) if True in whole.sampled_mask else -1
        expect(first == len(prompt), f"the first sampled token is {first}, the generation prompt ends at {len(prompt)}")


def _turns(subject: RendererSubject) -> list[Message]:
    turns: list[Message] = [assistant()]
    if subject.writes_reasoning:
        turns.append(assistant(reasoning_content=THOUGHT))
    if subject.takes_results:
        turns += [calling(), calling(SAY)]
    return [turn for turn in turns if subject.takes([user(), turn], tools_for([turn]))]
