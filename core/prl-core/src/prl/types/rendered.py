"""What a renderer returns: token ids and the spans that say who owns them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import IntFlag
from functools import cached_property
from typing import NamedTuple

from .errors import MaskUnavailableError


class Kind(IntFlag):
    """What a token is: scaffold of the template, a message's own text, something the model samples."""

    SCAFFOLD = 0
    CONTENT = 1
    SAMPLED = 2


class Span(NamedTuple):
    """Tokens `start <= i < end` with one owner and one kind.

    `message` is an index into the caller's own list; -1 where no message owns the tokens
    (a preamble, the generation prompt, the earlier part of a bridged prompt).
    """

    start: int
    end: int
    message: int
    kind: Kind


NO_MESSAGE = -1

# Tables by kind: looking up an int is far cheaper than the flag arithmetic of `enum`, and masks are built for every
# sample.
_NOTHING = (False, False, False, False)
_HAS_CONTENT = tuple(bool(kind & Kind.CONTENT) for kind in map(Kind, range(4)))
_HAS_SAMPLED = tuple(bool(kind & Kind.SAMPLED) for kind in map(Kind, range(4)))
_TARGETS = {True: _HAS_SAMPLED, False: _HAS_CONTENT}


@dataclass(frozen=True)
class RenderedTokens:
    """Token ids with ownership; every mask is computed from `spans`.

    `spans` cover the ids without gaps, in order. `spans is None` means that ownership could not be proven: the ids are
    right, every mask raises `MaskUnavailableError`. `roles[i]` is the role of the caller's message `i`.
    """

    token_ids: list[int]
    spans: Sequence[Span] | None
    roles: tuple[str, ...] = ()
    _head: tuple[Sequence[int], Sequence[int]] | None = field(default=None, init=False, compare=False, repr=False)

    @classmethod
    def extending(
        cls,
        prompt_ids: Sequence[int],
        completion_ids: Sequence[int],
        tail: Sequence[int],
        spans: Sequence[Span] | None,
        roles: tuple[str, ...] = (),
    ) -> RenderedTokens:
        """Return a bridged prompt: `prompt_ids`, `completion_ids`, `tail`. `spans` are of all of them."""
        # list + list sizes its result at once; a long prompt is copied in every turn of a rollout
        added = [*completion_ids, *tail]
        ids = prompt_ids + added if isinstance(prompt_ids, list) else [*prompt_ids, *added]
        made = cls(ids, spans, roles)
        object.__setattr__(made, "_head", (prompt_ids, completion_ids))
        return made

    def begins_with(self, prompt_ids: Sequence[int], completion_ids: Sequence[int]) -> bool:
        """Whether the ids are those of a prompt and a completion, then more.

        Nothing is compared for the very lists that `extending` was given, which nobody may have changed since.
        """
        if self._head is not None and self._head[0] is prompt_ids and self._head[1] is completion_ids:
            return True
        start, end = len(prompt_ids), len(prompt_ids) + len(completion_ids)
        return self.token_ids[:start] == list(prompt_ids) and self.token_ids[start:end] == list(completion_ids)

    def __len__(self) -> int:
        return len(self.token_ids)

    @cached_property
    def message_indices(self) -> list[int]:
        """Per token: index of the owning message in the caller's list, or -1."""
        out: list[int] = []
        for start, end, message, _ in self._proven_spans():
            out.extend([message] * (end - start))
        return out

    @cached_property
    def sampled_mask(self) -> list[bool]:
        """Per token: whether the model samples it (reasoning, content, calls and the stop token of assistant turns)."""
        return self._mask(Kind.SAMPLED)

    @cached_property
    def content_mask(self) -> list[bool]:
        """Per token: whether it is a message's own text rather than scaffold of the template."""
        return self._mask(Kind.CONTENT)

    def loss_mask(
        self, roles: Collection[str] = ("assistant",), *, messages: Collection[int] | None = None
    ) -> list[bool]:
        """Per token: whether it is a training target (index i means "token i is predicted", not shifted).

        Assistant turns contribute what the model samples, stop token included; other roles contribute their body only.
        `messages` narrows the mask to some of the caller's message indices.
        """
        targets = [
            _TARGETS[role == "assistant"] if role in roles and (messages is None or n in messages) else _NOTHING
            for n, role in enumerate(self.roles)
        ]
        targets.append(_NOTHING)  # where NO_MESSAGE (-1) looks
        out: list[bool] = []
        for start, end, message, kind in self._proven_spans():
            out += [targets[message][kind]] * (end - start)
        return out

    def _mask(self, flag: Kind) -> list[bool]:
        table = _HAS_SAMPLED if flag is Kind.SAMPLED else _HAS_CONTENT
        out: list[bool] = []
        for start, end, _, kind in self._proven_spans():
            out += [table[kind]] * (end - start)
        return out

    def _proven_spans(self) -> Sequence[Span]:
        if self.spans is None:
            raise MaskUnavailableError(
                "token ownership could not be proven for this chat template, so there is no mask",
                where="the default renderer, on this model's chat template",
                next_step="install the model family's renderer plugin, or train without masks on purpose",
            )
        return self.spans
