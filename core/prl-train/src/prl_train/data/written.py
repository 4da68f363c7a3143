"""Assistant turns that nobody sampled here, with the exact tokens they would have had in a rollout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from prl.contracts import Renderer
from prl.render import proven_bridge
from prl.tokenizer import Tokenizer
from prl.tokenizer.table import join_bytes
from prl.types import Message, RenderedTokens, RenderError, ToolSpec, Turn


@dataclass(frozen=True, slots=True)
class WrittenTurn:
    """A turn's prompt, and the completion up to its last sampled token; `mask[i]`: a model samples `completion[i]`."""

    prompt: list[int]
    completion: list[int]
    mask: list[bool]


def written_turn(
    renderer: Renderer,
    tokenizer: Tokenizer,
    history: Sequence[Message],
    new: Sequence[Message],
    said: Message,
    *,
    last: Turn | None = None,
    tools: Sequence[ToolSpec] | None = None,
) -> WrittenTurn:
    """Return the turn `said` as the renderer writes it after `history` and `new`.

    `last` is the turn that ends `history`. As in a rollout, its prompt and completion are extended where the renderer
    can prove it may; else the whole conversation is rendered, which shows as a break. Raises `RenderError`, or
    `MaskUnavailableError` for a renderer that cannot tell what a model samples.
    """
    conversation = [*history, *new]
    opened = renderer.render_ids(conversation, tools=tools, add_generation_prompt=True)
    prompt = opened
    if last is not None:
        bridged = proven_bridge(renderer, last.prompt_ids, last.completion_ids, new, tools=tools, history=list(history))
        prompt = opened if bridged is None else bridged[:]
    whole = renderer.render([*conversation, said], tools=tools)
    found = answer_behind(renderer, tokenizer, conversation, opened, whole, whole.sampled_mask, tools)
    if found is None:
        raise RenderError(
            f"renderer {renderer.name!r} writes an answered turn otherwise than it prompts for one",
            where="an assistant turn that was not sampled here",
            next_step="set renderer options that agree with the turns, such as enable_thinking",
        )
    stop = missing_stop(renderer, [*conversation, said], tools, found)
    ids, mask = found
    if not stop and True not in mask:
        raise RenderError(
            "no token of the turn would be sampled by a model",
            where=f"message {len(conversation)}, renderer {renderer.name!r}",
            next_step="a turn must have reasoning, content or a call, or at least its stop token",
        )
    end = sampled_end(mask)
    return WrittenTurn(prompt, ids[:end] + stop, mask[:end] + [True] * len(stop))


def sampled_end(mask: Sequence[bool]) -> int:
    """Return where the last sampled token ends, 0 where none is."""
    return next((n for n in range(len(mask), 0, -1) if mask[n - 1]), 0)


def missing_stop(
    renderer: Renderer,
    messages: Sequence[Message],
    tools: Sequence[ToolSpec] | None,
    turn: tuple[Sequence[int], Sequence[bool]],
) -> list[int]:
    """Return the token with which a model ends the last message, where its ids and mask lack it; else nothing.

    Some formats have no mark for the end of a turn: a model samples the mark that opens the next message, which no
    render has before there is one. A result of a tool comes after calls, a user's message after anything else.
    """
    ids, mask = turn
    end, stops = sampled_end(mask), renderer.get_stop_token_ids()
    if end and ids[end - 1] in stops:
        return []
    said: Any = messages[-1]
    calls = said.get("tool_calls")
    following: Any = {"role": "user", "content": "."}
    if calls:
        following = {"role": "tool", "content": ".", "tool_call_id": calls[0].get("id") or "call_0"}
    rendered = renderer.render([*messages, following], tools=tools)
    own = rendered.loss_mask({"assistant"}, messages=[len(messages) - 1])
    last = sampled_end(own)
    found = rendered.token_ids[last - 1 : last] if last else []
    return [token for token in found if token in stops]


def without_stop(turn: WrittenTurn, stop_ids: Sequence[int]) -> WrittenTurn:
    """Return a turn that ran out of tokens: its stop token, which nobody said, is left out."""
    if turn.completion[-1] not in stop_ids:
        return turn
    return WrittenTurn(turn.prompt, turn.completion[:-1], turn.mask[:-1])


def answer_behind(
    renderer: Renderer,
    tokenizer: Tokenizer,
    before: Sequence[Message],
    prompt: list[int],
    whole: RenderedTokens,
    mask: list[bool],
    tools: Sequence[ToolSpec] | None,
) -> tuple[list[int], list[bool]] | None:
    """Return the tokens and the mask of the turn after the messages `before`, as they go on from its prompt.

    `whole` is the render that ends with the turn, `mask` that of its tokens. A template may write what came before
    otherwise once the turn is there (a final answer strips the reasoning of the calls before it): the turn's own tokens
    are then those behind the prompt's opening. None where the turn is written otherwise than it is prompted for.
    """
    found = behind_prompt(tokenizer, prompt, whole.token_ids, mask, renderer.name)
    if found is not None:
        return found
    history = renderer.render_ids(before, tools=tools)
    start = next((place for place, owner in enumerate(whole.message_indices) if owner == len(before)), None)
    opening = prompt[len(history) :]
    if start is None or not opening or prompt[: len(history)] != history:
        return None
    return behind_prompt(tokenizer, opening, whole.token_ids[start:], mask[start:], renderer.name)


def behind_prompt(
    tokenizer: Tokenizer, prompt: list[int], whole: list[int], mask: list[bool], renderer: str
) -> tuple[list[int], list[bool]] | None:
    """Return what follows the prompt in `whole` and its mask, in the tokens that a sampler would begin with.

    Where the last token of the prompt has merged with the first of the turn ("\n" and "\nHi"), the text up to the
    next control token is encoded anew, on its own: no sampler could continue inside a token. None where the text of
    `whole` does not go on from the prompt's.
    """
    same = _common_prefix(prompt, whole)
    if same == len(prompt):
        return whole[same:], mask[same:]
    data = tokenizer.token_bytes
    rest = join_bytes(data, prompt[same:])
    controls = set(tokenizer.added_tokens.values())
    end = same
    while end < len(whole) and whole[end] not in controls:
        end += 1
    run = join_bytes(data, whole[same:end])
    if not rest or not run.startswith(rest) or controls.intersection(prompt[same:]):
        return None
    try:
        text = run[len(rest) :].decode("utf-8")
    except UnicodeDecodeError as error:
        raise RenderError(
            "the prompt ends inside a character of the turn",
            where=f"renderer {renderer!r}",
            next_step="report this: a prompt must end where a text can begin",
        ) from error
    fresh = tokenizer.encode_ordinary(text)
    flags = _flags(data, fresh, whole[same:end], mask[same:end], len(rest), True in mask[same:])
    return fresh + whole[end:], flags + mask[end:]


def _flags(
    data: list[bytes], fresh: list[int], old: list[int], mask: list[bool], skipped: int, is_sampled: bool
) -> list[bool]:
    """Return the mask of the new tokens: each has the flag of the old token that ends where it ends, or spans it.

    The old token that straddles the border counts as scaffold there; its rest is what is sampled first.
    """
    flag_of_byte: list[bool] = []
    for token, flag in zip(old, mask, strict=True):
        straddles = len(flag_of_byte) < skipped < len(flag_of_byte) + len(data[token])
        flag_of_byte += [is_sampled if straddles else flag] * len(data[token])
    flags, place = [], skipped
    for token in fresh:
        place += len(data[token])
        flags.append(flag_of_byte[place - 1])
    return flags


def _common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """Return how many items two sequences have in common from their start."""
    return next((n for n, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))
