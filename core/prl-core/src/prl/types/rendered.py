"""What a renderer returns: token ids and the spans that say who owns them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import IntFlag
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from .errors import MaskUnavailableError, RenderError
from .prompt import PromptIds, goes_on_from


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
    _shared: PromptIds | None = field(default=None, init=False, compare=False, repr=False)

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
        if not isinstance(prompt_ids, PromptIds):
            return cls([*prompt_ids, *completion_ids, *tail], spans, roles)
        made = cls([], spans, roles)
        object.__setattr__(made, "_shared", prompt_ids.extended(completion_ids, tail))
        object.__delattr__(made, "token_ids")  # a list of a long prompt is made where somebody asks for it
        return made

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> list[int]:
            if name != "token_ids":
                raise AttributeError(name)
            object.__setattr__(self, name, self._shared[:])
            return self.token_ids

    @property
    def ids(self) -> Sequence[int]:
        """The ids without copying them: `PromptIds` where those of a rollout were extended, else `token_ids`."""
        return self.token_ids if self._shared is None else self._shared

    def begins_with(self, prompt_ids: Sequence[int], completion_ids: Sequence[int]) -> bool:
        """Whether the ids are those of a prompt and a completion, then more."""
        return goes_on_from(self.ids, prompt_ids, completion_ids)

    def __len__(self) -> int:
        return len(self.ids)

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
        `messages` narrows the mask to some of the caller's message indices. Raises `RenderError` for an index that no
        message has.
        """
        if isinstance(roles, str) or not isinstance(roles, Collection):
            raise RenderError(f"roles is {roles!r}", where="roles", next_step='give a list, such as ["assistant"]')
        if messages is not None:
            self._check_messages(messages)
        targets = [
            _TARGETS[role == "assistant"] if role in roles and (messages is None or n in messages) else _NOTHING
            for n, role in enumerate(self.roles)
        ]
        targets.append(_NOTHING)  # where NO_MESSAGE (-1) looks
        out: list[bool] = []
        for start, end, message, kind in self._proven_spans():
            out += [targets[message][kind]] * (end - start)
        return out

    def _check_messages(self, messages: Collection[int]) -> None:
        known = range(len(self.roles))
        absent = [messages] if not isinstance(messages, Collection) else [n for n in messages if n not in known]
        if absent:
            raise RenderError(
                f"{absent[0]!r} is no message of these",
                where="messages",
                next_step=f"give a list of indices, each from 0 to {len(self.roles) - 1}",
            )

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
