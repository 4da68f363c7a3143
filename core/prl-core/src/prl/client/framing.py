"""Extend a prompt by ids that a server's own rendering proves, without a tokenizer here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prl.contracts import TokenChatClient
from prl.types import Message, Turn

from .chat import wire_message

PROBE_ANSWERS = ("A", "B")  # two answers that differ: what their renderings share at the end is the close of a turn


@dataclass(frozen=True, slots=True)
class _Probe:
    """A short conversation, rendered: `ids` whole, `close` what follows the content of its answer."""

    ids: list[int]
    close: list[int]


class Framing:
    """What a server puts between one assistant turn and the next. `common` are fields of every tokenize request."""

    def __init__(self, engine: TokenChatClient, common: Mapping[str, Any]) -> None:
        self._engine = engine
        self._common = common
        self._probe: _Probe | None = None

    async def extend(self, last: Turn, before: Sequence[Message], after: Sequence[Message]) -> list[int] | None:
        """Return `last`'s prompt and completion, verbatim, and the framing of what `after` adds to `before`.

        None where that cannot be proven: the turn did not stop by itself, the server renders the past differently once
        more follows, or its stop token is no part of the framing.
        """
        if last.finish_reason != "stop" or not last.completion_ids:
            return None
        if self._probe is None:
            self._probe = await self._ask_probe()
        closed = await self._tokenize(before, generate=False)
        longer = await self._tokenize(after, generate=True)
        stop = last.completion_ids[-1]
        added = (
            _after_close(stop, self._probe, closed, longer)
            if stop in self._probe.close
            else _after_opener(stop, self._probe, closed, longer)
        )
        return None if added is None else [*last.prompt_ids, *last.completion_ids, *added]

    async def _ask_probe(self) -> _Probe:
        first, second = [
            await self._tokenize(
                [{"role": "user", "content": "x"}, {"role": "assistant", "content": text}], generate=False
            )
            for text in PROBE_ANSWERS
        ]
        same = 0
        while same < min(len(first), len(second)) and first[-1 - same] == second[-1 - same]:
            same += 1
        return _Probe(first, first[len(first) - same :])

    async def _tokenize(self, messages: Sequence[Message], *, generate: bool) -> list[int]:
        body = {"messages": [wire_message(message) for message in messages], "add_generation_prompt": generate}
        return await self._engine.tokenize({**self._common, **body})


def _after_close(stop: int, probe: _Probe, closed: list[int], longer: list[int]) -> list[int] | None:
    """Return what follows the last turn's stop token, which closes it.

    Turns are told apart by their stop tokens. All before the last must be as they were; the last may lose what the
    template writes into any last turn (Qwen3: an empty reasoning block), and nothing else.
    """
    tail = probe.close[probe.close.index(stop) + 1 :]
    ends = [place for place, token in enumerate(closed) if token == stop]
    new_ends = [place for place, token in enumerate(longer) if token == stop]
    if not ends or closed[ends[-1] + 1 :] != tail or len(new_ends) < len(ends):
        return None
    end = new_ends[len(ends) - 1]
    start = ends[-2] + 1 if len(ends) > 1 else 0
    if longer[:start] != closed[:start] or longer[end + 1 : end + 1 + len(tail)] != tail:
        return None
    lost = _lost(closed[start : ends[-1]], longer[start:end])
    return longer[end + 1 :] if lost is not None and _is_within(lost, probe.ids) else None


def _after_opener(stop: int, probe: _Probe, closed: list[int], longer: list[int]) -> list[int] | None:
    """Return what follows a stop token that is the first of the next message (GLM's role markers)."""
    whole = [*closed, stop]
    return longer[len(whole) :] if not probe.close and longer[: len(whole)] == whole else None


def _lost(whole: list[int], part: list[int]) -> list[int] | None:
    """Return the one stretch that `part` lacks of `whole`; None where they differ in another way."""
    same = 0
    while same < min(len(whole), len(part)) and whole[same] == part[same]:
        same += 1
    end = same + len(whole) - len(part)
    return whole[same:end] if end >= same and whole[end:] == part[same:] else None


def _is_within(stretch: list[int], ids: list[int]) -> bool:
    return any(ids[place : place + len(stretch)] == stretch for place in range(len(ids) - len(stretch) + 1))
