"""Assistant turns that nobody sampled here, with the exact tokens they would have had in a rollout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prl.contracts import Renderer
from prl.tokenizer import Tokenizer
from prl.tokenizer.table import join_bytes
from prl.types import Message, RenderError, ToolSpec, Turn


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
        bridged = renderer.bridge_to_next_turn(
            last.prompt_ids, last.completion_ids, new, tools=tools, history=list(history)
        )
        prompt = opened if bridged is None else bridged.token_ids
    whole = renderer.render([*conversation, said], tools=tools)
    ids, mask = _after(tokenizer, opened, whole.token_ids, whole.sampled_mask, renderer.name)
    if True not in mask:
        raise RenderError(
            "no token of the turn would be sampled by a model",
            where=f"message {len(conversation)}, renderer {renderer.name!r}",
            next_step="a turn must have reasoning, content or a call, or at least its stop token",
        )
    end = len(mask) - mask[::-1].index(True)
    return WrittenTurn(prompt, ids[:end], mask[:end])


def without_stop(turn: WrittenTurn, stop_ids: Sequence[int]) -> WrittenTurn:
    """Return a turn that ran out of tokens: its stop token, which nobody said, is left out."""
    if turn.completion[-1] not in stop_ids:
        return turn
    return WrittenTurn(turn.prompt, turn.completion[:-1], turn.mask[:-1])


def _after(
    tokenizer: Tokenizer, opened: list[int], whole: list[int], mask: list[bool], renderer: str
) -> tuple[list[int], list[bool]]:
    """Return what follows the prompt `opened` in `whole`, in the tokens that a sampler would begin with.

    Where the last token of the prompt has merged with the first of the turn ("\\n" and "\\nHi"), the text up to the
    next control token is encoded anew, on its own: no sampler could continue inside a token.
    """
    same = _common_prefix(opened, whole)
    if same == len(opened):
        return whole[same:], mask[same:]
    data = tokenizer.token_bytes
    rest = join_bytes(data, opened[same:])
    controls = set(tokenizer.added_tokens.values())
    end = same
    while end < len(whole) and whole[end] not in controls:
        end += 1
    run = join_bytes(data, whole[same:end])
    if not rest or not run.startswith(rest) or controls.intersection(opened[same:]):
        raise RenderError(
            f"renderer {renderer!r} writes an answered turn otherwise than it prompts for one",
            where="an assistant turn that was not sampled here",
            next_step="set renderer options that agree with the turns, such as enable_thinking",
        )
    try:
        text = run[len(rest) :].decode("utf-8")
    except UnicodeDecodeError as error:
        raise RenderError(
            "the prompt ends inside a character of the turn",
            where=f"renderer {renderer!r}",
            next_step="report this: a prompt must end where a text can begin",
        ) from error
    fresh = tokenizer.encode_ordinary(text)
    flags = _flags(data, fresh, whole[same:end], mask[same:end], len(rest))
    return fresh + whole[end:], flags + mask[end:]


def _flags(data: list[bytes], fresh: list[int], old: list[int], mask: list[bool], skipped: int) -> list[bool]:
    """Return the mask of the new tokens: each has the flag of the old token that ends where it ends, or spans it."""
    flag_of_byte = [flag for token, flag in zip(old, mask, strict=True) for _ in data[token]]
    flags, place = [], skipped
    for token in fresh:
        place += len(data[token])
        flags.append(flag_of_byte[place - 1])
    if flags:  # the token that straddled the border counts as scaffold in the whole; its rest is the turn's first token
        flags[0] = True in mask
    return flags


def _common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    return next((n for n, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))
