"""Whose each token of a turn is: proven by rendering the messages again and finding the same ids, never guessed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from prl.contracts import Renderer
from prl.types import Message, RenderedTokens, RenderError, ToolSpec

from .tokens import UNKNOWN_OWNER


class Owned(NamedTuple):
    """Per token: the owning message (-1 the template, -2 not proven), and whether it is content (None: not proven)."""

    owners: list[int]
    content: list[bool | None]


class Before(NamedTuple):
    """The turn that a prompt extends."""

    prompt_ids: list[int]
    completion_ids: list[int]


def unknown(count: int) -> Owned:
    """Return tokens of which nothing is proven."""
    return Owned([UNKNOWN_OWNER] * count, [None] * count)


def own_turn(
    renderer: Renderer | None,
    history: Sequence[Message],
    message: Message | None,
    prompt_ids: list[int],
    completion_ids: list[int],
    tools: Sequence[ToolSpec] | None,
    before: Before | None,
) -> Owned:
    """Return the owners of a turn's tokens behind those of the turn before: its new prompt, and its completion."""
    known = 0 if before is None else len(before.prompt_ids) + len(before.completion_ids)
    end = len(prompt_ids) + len(completion_ids)
    if renderer is None or not history:
        return unknown(end - known)
    whole = _rendered(renderer, [*history, message], tools, generate=False) if message is not None else None
    if whole is not None and whole.token_ids[:end] == [*prompt_ids, *completion_ids]:
        return Owned(whole.message_indices[known:end], list(whole.content_mask[known:end]))
    prompt = _prompt(renderer, history, prompt_ids, tools, before)
    answer = len(history) if message is not None else UNKNOWN_OWNER
    return Owned([*prompt.owners, *[answer] * len(completion_ids)], [*prompt.content, *[None] * len(completion_ids)])


def _prompt(
    renderer: Renderer,
    history: Sequence[Message],
    ids: list[int],
    tools: Sequence[ToolSpec] | None,
    before: Before | None,
) -> Owned:
    """Return the owners of what is new in the prompt, by a full render, else by a bridge from the turn before."""
    known = 0 if before is None else len(before.prompt_ids) + len(before.completion_ids)
    rendered = _rendered(renderer, history, tools, generate=True)
    if rendered is not None and rendered.token_ids == ids:
        return Owned(rendered.message_indices[known:], list(rendered.content_mask[known:]))
    answers = [n for n, one in enumerate(history) if one["role"] == "assistant"]
    if before is None or not answers:
        return unknown(len(ids) - known)
    first = answers[-1] + 1
    bridged = renderer.bridge_to_next_turn(
        before.prompt_ids, before.completion_ids, history[first:], tools=tools, history=history[:first]
    )
    if bridged is None or bridged.spans is None or bridged.token_ids != ids:
        return unknown(len(ids) - known)
    shifted = [owner if owner < 0 else owner + first for owner in bridged.message_indices[known:]]
    return Owned(shifted, list(bridged.content_mask[known:]))


def _rendered(
    renderer: Renderer, messages: Sequence[Message | None], tools: Sequence[ToolSpec] | None, *, generate: bool
) -> RenderedTokens | None:
    """Return a render whose owners are proven, None where there is none: a view shows also what cannot be rendered."""
    try:
        found = renderer.render([one for one in messages if one], tools=tools, add_generation_prompt=generate)
    except RenderError:
        return None
    return None if found.spans is None else found
