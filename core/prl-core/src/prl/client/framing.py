"""Extend a prompt by ids that a server's own rendering proves, without a tokenizer here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from prl.contracts import TokenChatClient
from prl.types import Message, Turn

from .chat import wire_message

PROBE_ANSWERS = ("A", "B")  # two answers that differ: what their renderings share at the end is the close of a turn


class Framing:
    """What a server puts between one assistant turn and the next. `common` are fields of every tokenize request."""

    def __init__(self, engine: TokenChatClient, common: Mapping[str, Any]) -> None:
        self._engine = engine
        self._common = common
        self._close: list[int] | None = None

    async def extend(self, last: Turn, before: Sequence[Message], after: Sequence[Message]) -> list[int] | None:
        """Return `last`'s prompt and completion, verbatim, and the framing of what `after` adds to `before`.

        None where that cannot be proven: the turn did not stop by itself, the server renders the past differently once
        more follows, or its stop token is no part of the framing.
        """
        if last.finish_reason != "stop" or not last.completion_ids:
            return None
        close = await self._closing_ids()
        closed = await self._tokenize(before, generate=False)
        longer = await self._tokenize(after, generate=True)
        if longer[: len(closed)] != closed or (close and closed[-len(close) :] != close):
            return None
        rest = _after_stop(last.completion_ids[-1], close, longer[len(closed) :])
        return None if rest is None else [*last.prompt_ids, *last.completion_ids, *rest]

    async def _closing_ids(self) -> list[int]:
        """Return the ids that follow the content of a finished assistant turn; none where the next turn closes it."""
        if self._close is None:
            first, second = [
                await self._tokenize(
                    [{"role": "user", "content": "x"}, {"role": "assistant", "content": text}], generate=False
                )
                for text in PROBE_ANSWERS
            ]
            same = 0
            while same < min(len(first), len(second)) and first[-1 - same] == second[-1 - same]:
                same += 1
            self._close = first[len(first) - same :]
        return self._close

    async def _tokenize(self, messages: Sequence[Message], *, generate: bool) -> list[int]:
        body = {"messages": [wire_message(message) for message in messages], "add_generation_prompt": generate}
        return await self._engine.tokenize({**self._common, **body})


def _after_stop(stop: int, close: Sequence[int], added: list[int]) -> list[int] | None:
    """Return what follows a sampled stop token: the rest of the close, or of the framing that begins with it."""
    if stop in close:
        return [*close[close.index(stop) + 1 :], *added]
    if not close and added[:1] == [stop]:
        return added[1:]
    return None
