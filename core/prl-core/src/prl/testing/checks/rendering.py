"""Checks of what a render is: the same ids every time, whole spans, the right owners, nothing dropped."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from prl.types import NO_MESSAGE, Kind, Message, RenderedTokens, ToolSpec

from .check import brief, check, expect
from .material import (
    ASK_AGAIN,
    SAY,
    SAY_AGAIN,
    TOOL,
    assistant,
    calling,
    flat,
    result,
    system,
    text_of,
    user,
)
from .renderer_subject import Case, RendererSubject, two_calls

_THREADS = 8


@check("renderer")
def same_input_gives_the_same_ids(subject: RendererSubject) -> None:
    """A rollout's prompts, and the trainer's, come out different for one conversation."""
    again = subject.make()
    for case in subject.cases:
        first = case.ids(subject.renderer)
        copied = Case(copy.deepcopy(case.messages), copy.deepcopy(case.tools), case.prompt)
        for other in (case.ids(subject.renderer), copied.ids(again)):
            expect(other == first, f"two renders of one conversation differ: {brief(case.messages)}")


@check("renderer")
def the_callers_input_is_not_changed(subject: RendererSubject) -> None:
    """The environment's own messages change under its hands."""
    for case in subject.cases:
        before = copy.deepcopy((case.messages, case.tools))
        case.ids(subject.renderer)
        expect((case.messages, case.tools) == before, f"render changed its input: {brief(before)}")


@check("renderer")
def render_ids_are_the_ids_of_render(subject: RendererSubject) -> None:
    """What is sampled from and what is trained on differ."""
    for case in subject.cases[:40]:
        rendered = subject.renderer.render(case.messages, tools=case.tools, add_generation_prompt=case.prompt)
        expect(
            rendered.token_ids == case.ids(subject.renderer), f"render and render_ids differ: {brief(case.messages)}"
        )


@check("renderer")
def threads_give_the_same_ids(subject: RendererSubject) -> None:
    """Concurrent rollouts mix each other's conversations up."""
    cases = subject.cases[:40]
    alone = [case.ids(subject.renderer) for case in cases]
    shared = subject.make()
    with ThreadPoolExecutor(_THREADS) as pool:
        for together in pool.map(lambda _: [case.ids(shared) for case in cases], range(_THREADS)):
            for case, ids, wanted in zip(cases, together, alone, strict=True):
                expect(ids == wanted, f"another thread got other ids: {brief(case.messages)}")


@check("renderer")
def spans_cover_the_ids(subject: RendererSubject) -> None:
    """A token without owner or kind is trained, or left out, by accident."""
    for case in subject.cases:
        rendered = subject.renderer.render(case.messages, tools=case.tools, add_generation_prompt=case.prompt)
        check_spans(rendered, [str(message.get("role")) for message in case.messages])


@check("renderer")
def bodies_belong_to_their_messages(subject: RendererSubject) -> None:
    """Loss masks and weights land on another message than the caller named."""
    for messages, tools in _talks(subject):
        rendered = subject.renderer.render(messages, tools=tools)
        bodies = dict.fromkeys(range(-1, len(messages)), "")
        owned = dict(bodies)
        for start, end, owner, kind in rendered.spans or ():
            text = subject.text(rendered.token_ids[start:end])
            owned[owner] += text
            bodies[owner] += text if kind & Kind.CONTENT else ""
        for index, message in enumerate(messages):
            _check_body(message, bodies[index], owned[index], index)
        expect(not bodies[NO_MESSAGE].strip(), f"content without a message: {bodies[NO_MESSAGE]!r}")


@check("renderer")
def nothing_is_dropped(subject: RendererSubject) -> None:
    """A message, a call or a tool never reaches the model, and nobody is told."""
    for messages, tools in [*_talks(subject), *_uncommon(subject)]:
        text = flat(subject.text(subject.renderer.render_ids(messages, tools=tools)))
        for message in messages:
            expect(flat(text_of(message)) in text, f"the text of {brief(message)} is not in the render")
            for one in message.get("tool_calls") or ():
                function: Any = one["function"]
                expect(flat(function["name"]) in text, f"the call to {function['name']!r} is not in the render")
                missing = [v for v in function["arguments"].values() if flat(str(v)) not in text]
                expect(not missing, f"the arguments {missing} of a call are not in the render")
        for tool in tools or ():
            expect(flat(tool["function"]["name"]) in text, f"the tool {brief(tool)} is not in the render")


@check("renderer")
def all_text_of_the_last_turn_is_rendered(subject: RendererSubject) -> None:
    """Supervised training never shows the model the reasoning or the answer that the data holds."""
    for turn in subject.ordinary_turns:
        text = flat(subject.text(subject.renderer.render_ids([user(), turn])))
        expect(flat(text_of(turn)) in text, f"the content is not in the render: {brief(turn)}")
        reasoning = turn.get("reasoning_content") or turn.get("reasoning")
        if subject.writes_reasoning and reasoning:
            expect(flat(reasoning) in text, f"the reasoning is not in the render: {brief(turn)}")


@check("renderer")
def completed_turns_stay_prefixes_where_promised(subject: RendererSubject) -> None:
    """`is_prefix_stable` is believed, and samples that were one become many."""
    if not subject.renderer.is_prefix_stable:
        return
    for case in subject.cases:
        whole = subject.renderer.render_ids(case.messages, tools=case.tools)
        for end in _completed(case.messages):
            if subject.takes(case.messages[:end], case.tools):
                ids = subject.renderer.render_ids(case.messages[:end], tools=case.tools)
                expect(whole[: len(ids)] == ids, f"render of {end} messages is no prefix of {brief(case.messages)}")


def _completed(messages: Sequence[Message]) -> Iterator[int]:
    """Yield where a rollout may have ended a turn: behind an assistant message, with users and tools to come."""
    roles = [message["role"] for message in messages]
    for end, role in enumerate(roles, 1):
        if role == "assistant" and "assistant" not in roles[end : end + 1] and "system" not in roles[end:]:
            yield end


def check_spans(rendered: RenderedTokens, roles: Sequence[str]) -> None:
    """Fail where spans, masks or roles do not fit the ids."""
    size = len(rendered.token_ids)
    spans = list(rendered.spans or ())
    ends = [0, *(span.end for span in spans)]
    expect([span.start for span in spans] == ends[:-1], f"the spans leave gaps or overlap: {brief(spans)}")
    expect(ends[-1] == size, f"the spans end at {ends[-1]} of {size} tokens")
    expect(all(span.end > span.start for span in spans), f"an empty span: {brief(spans)}")
    expect(rendered.roles == tuple(roles), f"roles are {rendered.roles}, the caller's are {tuple(roles)}")
    owners = {span.message for span in spans}
    expect(owners <= set(range(-1, len(roles))), f"owners {sorted(owners)} with {len(roles)} messages")
    expect({int(span.kind) for span in spans} <= set(range(4)), f"unknown kinds: {brief(spans)}")
    for mask in (rendered.message_indices, rendered.sampled_mask, rendered.content_mask, rendered.loss_mask()):
        expect(len(mask) == size, f"a mask of {len(mask)} for {size} tokens")
    sampled_by = {rendered.roles[span.message] for span in spans if span.kind & Kind.SAMPLED and span.message >= 0}
    expect(sampled_by <= {"assistant"}, f"tokens of {sorted(sampled_by)} are marked as sampled by the model")


def _check_body(message: Message, body: str, owned: str, index: int) -> None:
    """Compare without white space at the ends: a token across a border belongs to the piece before it."""
    wanted = text_of(message).strip()
    found = body.strip()
    if message["role"] == "assistant":
        expect(wanted in body, f"the content {wanted!r} of message {index} is not in its content spans {found!r}")
        for one in message.get("tool_calls") or ():
            expect(one["function"]["name"] in owned, f"the call of message {index} does not belong to it: {owned!r}")
    else:
        expect(found == wanted, f"the content spans of message {index} hold {found!r}, its body is {wanted!r}")


def _talks(subject: RendererSubject) -> list[tuple[list[Message], list[ToolSpec] | None]]:
    """Return plain conversations of every kind that the format takes."""
    base: list[Message] = [user(), assistant(), user(ASK_AGAIN), assistant(SAY_AGAIN)]
    talks: list[tuple[list[Message], list[ToolSpec] | None]] = [([user()], None), (base, None)]
    if subject.takes_system:
        talks.append(([system(), *base], None))
    if subject.takes_results:
        talks.append(([user(), calling(), result(), assistant(), user(ASK_AGAIN)], [TOOL]))
    if subject.takes_system and subject.takes_results:
        talks.append(([system(), user(), calling(), result(), assistant()], [TOOL]))
    return talks


def _uncommon(subject: RendererSubject) -> list[tuple[list[Message], list[ToolSpec] | None]]:
    """Return what formats are tempted to drop: each is rendered, or refused."""
    candidates: list[tuple[list[Message], list[ToolSpec] | None]] = [
        ([user(), calling(SAY), result()], [TOOL]),
        ([user(), calling("", *two_calls()), result(), result("Cold.", 2)], [TOOL]),
        ([user(), calling()], None),
        ([user()], [TOOL]),
        ([system()], None),
        ([user(), assistant(), system(), user(ASK_AGAIN)], None),
        ([user(), {"role": "narrator", "content": "A vermilion curtain."}], None),
        ([assistant(), user(ASK_AGAIN)], None),
    ]
    return [one for one in candidates if subject.takes(*one)]
