"""One conversation to the samples that train it, each turn behind the prompt that a sampler would have had.

A template may write past turns otherwise than it wrote them when they were new: it strips their reasoning, for one. The
full render of such a conversation trains turns behind prompts that no sampler ever sees.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from prl.contracts import Renderer
from prl.tokenizer import Tokenizer
from prl.types import RenderError

from .sft_notes import AS_TEMPLATE, WITHOUT_STOP
from .sft_rows import SftRow, SftSample, read_row
from .written import answer_behind, missing_stop, sampled_end

SampleMode = Literal["auto", "whole", "per_turn", "last"]


@dataclass(frozen=True, slots=True)
class SampleBuilder:
    """Rows to samples through one renderer.

    `roles` are trained where a message has no switch of its own: assistant turns as the model would sample them, stop
    token included, other roles their body only. `mode` is "auto" (as few samples as give every trained turn its own
    prompt), "whole" (the full render), "per_turn" (one sample a trained turn) or "last" (the last trained turn alone).
    """

    renderer: Renderer
    tokenizer: Tokenizer
    roles: Collection[str] = ("assistant",)
    mode: SampleMode = "auto"
    notes: Counter[str] = field(default_factory=Counter)

    def build(self, row: Mapping[str, object] | SftRow, *, index: int = -1, where: str = "row") -> list[SftSample]:
        """Return the samples of a row, at least one; raise `RenderError` where nothing of it would be trained."""
        cleaned = row if isinstance(row, SftRow) else read_row(row, where)
        row_builder = replace(self, notes=Counter())
        pieces = [piece for piece in _MODES[self.mode](row_builder, cleaned) if True in piece[1]]
        notes = [row_builder.notes, *({} for _ in pieces)]
        samples = [SftSample(ids, mask, index, note) for (ids, mask), note in zip(pieces, notes, strict=False)]
        if not samples:
            raise RenderError(
                "no token of this conversation would be trained",
                where=f"{len(cleaned.messages)} messages, roles {', '.join(sorted(self.roles))}",
                next_step="check that the conversation holds a turn of these roles, or drop the sample",
            )
        return samples


_Piece = tuple[list[int], list[bool]]


def _auto(builder: SampleBuilder, row: SftRow) -> list[_Piece]:
    if builder.renderer.is_prefix_stable:
        ids, mask = _rendered(builder, row, len(row.messages), row.targets(builder.roles))
        if _is_prompted(builder, row, ids, mask):
            ids, mask = _with_last_stop(builder, row, ids, mask)
            _note_stops(builder, len(_trained_turns(builder, row)), ids, mask)
            return [(ids, mask)]
    joined: list[_Piece] = []
    for ids, mask in _turns(builder, row):
        base = max((piece for piece in joined if ids[: len(piece[0])] == piece[0]), key=_length, default=None)
        if base is None:
            joined.append((ids, mask))
        else:
            start = len(base[0])
            joined[joined.index(base)] = (ids, [*base[1], *mask[start:]])
    return joined


def _is_prompted(builder: SampleBuilder, row: SftRow, ids: list[int], mask: list[bool]) -> bool:
    """Whether each trained turn of a render begins right behind the tokens of a generation prompt.

    Where nothing of the past is rewritten, a turn's first tokens are all that may differ: text that merges with the
    prompt's last token. The prompt of the first turn tells what a generation prompt looks like.
    """
    turns = _trained_turns(builder, row)
    if not turns:
        return True
    before = row.messages[: turns[0]]
    prompt = builder.renderer.render_ids(before, tools=row.tools, add_generation_prompt=True)
    if ids[: len(prompt)] != prompt:
        return False
    opening = prompt[len(builder.renderer.render_ids(before, tools=row.tools)) if before else 0 :]
    starts = [i for i in range(1, len(ids)) if mask[i] and not mask[i - 1]]
    behind = sum(ids[start - len(opening) : start] == opening for start in starts if start >= len(opening))
    return behind >= len(turns)


def _with_last_stop(builder: SampleBuilder, row: SftRow, ids: list[int], mask: list[bool]) -> _Piece:
    """Return a whole render, its last turn ended as a model ends it where nothing after it does."""
    last = len(row.messages) - 1
    if row.messages[last]["role"] != "assistant" or last not in row.targets(builder.roles):
        return ids, mask
    stop = missing_stop(builder.renderer, row.messages, row.tools, (ids, mask))
    return _ended(ids, mask, stop) if stop else (ids, mask)


def _length(piece: _Piece) -> int:
    return len(piece[0])


def _whole(builder: SampleBuilder, row: SftRow) -> list[_Piece]:
    targets = row.targets(builder.roles)
    ids, mask = _rendered(builder, row, len(row.messages), targets)
    _note_stops(builder, len(_trained_turns(builder, row)), ids, mask)
    return [(ids, mask)]


def _per_turn(builder: SampleBuilder, row: SftRow) -> list[_Piece]:
    return list(_turns(builder, row))


def _last(builder: SampleBuilder, row: SftRow) -> list[_Piece]:
    turns = _trained_turns(builder, row)
    return [_turn(builder, row, turns[-1], [turns[-1]])] if turns else []


_MODES: Mapping[str, Callable[[SampleBuilder, SftRow], list[_Piece]]] = {
    "auto": _auto,
    "whole": _whole,
    "per_turn": _per_turn,
    "last": _last,
}


def _turns(builder: SampleBuilder, row: SftRow) -> Iterator[_Piece]:
    """Yield one piece a trained assistant turn: what stood before it, and its tokens, up to its last target.

    Other targets belong to the piece of the next trained turn; those after the last turn to a piece of their own.
    """
    waiting: list[int] = []
    for index in row.targets(builder.roles):
        waiting.append(index)
        if row.messages[index]["role"] == "assistant":
            yield _turn(builder, row, index, waiting)
            waiting = []
    if waiting:
        yield _cut(*_rendered(builder, row, len(row.messages), waiting))


def _turn(builder: SampleBuilder, row: SftRow, turn: int, targets: Sequence[int]) -> _Piece:
    """Return a turn behind its prompt, whose tokens are none of the turn's own; `targets` are trained in it too."""
    renderer, before, tools = builder.renderer, row.messages[:turn], row.tools
    opened = renderer.render(before, tools=tools, add_generation_prompt=True)
    answered = renderer.render(row.messages[: turn + 1], tools=tools)
    others = [index for index in targets if index != turn]
    roles = {row.messages[index]["role"] for index in others}
    own = answered.loss_mask({"assistant"}, messages=[turn])
    behind = answer_behind(renderer, builder.tokenizer, before, opened.token_ids, answered, own, tools)
    stop = missing_stop(renderer, row.messages[: turn + 1], tools, behind or (answered.token_ids, own))
    _note_stops(builder, 1, stop or answered.token_ids, [True] * len(stop) or own)
    if behind is None:  # the template writes an answered turn otherwise than it prompts for one
        builder.notes[AS_TEMPLATE] += 1
        known = answered.loss_mask(roles, messages=others)
        return _ended(answered.token_ids, [one or other for one, other in zip(own, known, strict=True)], stop)
    return _ended(opened.token_ids + behind[0], opened.loss_mask(roles, messages=others) + behind[1], stop)


def _trained_turns(builder: SampleBuilder, row: SftRow) -> list[int]:
    """Return the indices of the assistant messages that are trained."""
    return [index for index in row.targets(builder.roles) if row.messages[index]["role"] == "assistant"]


def _note_stops(builder: SampleBuilder, turns: int, ids: Sequence[int], mask: Sequence[bool]) -> None:
    """Count the turns that have no stop token among what is trained."""
    stops = set(builder.renderer.get_stop_token_ids())
    found = sum(flag and token in stops for token, flag in zip(ids, mask, strict=True))
    if found < turns:
        builder.notes[WITHOUT_STOP] += turns - found


def _ended(ids: list[int], mask: list[bool], stop: list[int]) -> _Piece:
    """Cut off what follows the last target, and add the stop token that a render lacks."""
    ids, mask = _cut(ids, mask)
    return ids + stop, mask + [True] * len(stop)


def _rendered(builder: SampleBuilder, row: SftRow, end: int, targets: Sequence[int]) -> _Piece:
    rendered = builder.renderer.render(row.messages[:end], tools=row.tools)
    roles = {row.messages[index]["role"] for index in targets}
    return rendered.token_ids, rendered.loss_mask(roles, messages=targets)


def _cut(ids: list[int], mask: list[bool]) -> _Piece:
    """Cut off what follows the last target: a template's close after a turn is no part of what later turns extend."""
    end = sampled_end(mask)
    return ids[:end], mask[:end]
