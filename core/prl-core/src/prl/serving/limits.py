"""What a request is checked against before an engine sees it: its model's ids and context, the server's ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from prl.client.http import RANK_HEADER
from prl.types import MalformedRequestError, PromptTooLongError, close_names

from .errors import UnknownModelError

BYTES_PER_ID = 24  # the longest id, its comma, and generous white space
OTHER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLimits:
    """The model's vocabulary (ids) and context (tokens), and the server's data-parallel ranks."""

    vocabulary: int
    context: int
    ranks: int = 1

    @property
    def body_bytes(self) -> int:
        """The largest body that can hold a prompt and stop ids."""
        return BYTES_PER_ID * (self.context + self.vocabulary) + OTHER_BYTES

    @property
    def ranks_told(self) -> str:
        """Which ranks a request may name, as a next step."""
        named = f"a rank from 0 to {self.ranks - 1}" if self.ranks > 1 else "0"
        return f"send {named}, or leave the header out"

    def check_prompt(self, ids: Sequence[int], field: str) -> None:
        """Raise the typed error of a prompt that is empty, holds a foreign id or leaves no room to sample."""
        if len(ids) == 0:
            raise MalformedRequestError("the prompt is empty", where=field, next_step="send at least one token id")
        self.check_ids(ids, field)
        if len(ids) >= self.context:
            raise PromptTooLongError(
                f"the prompt has {len(ids)} tokens; the context of {self.context} leaves none to sample",
                where=field,
                next_step="end the rollout here as truncated, shorten the prompt, or raise max_model_len",
            )

    def check_ids(self, ids: Sequence[int], field: str) -> None:
        """Raise `MalformedRequestError` for an id outside the vocabulary: some engines die of such an id."""
        if len(ids) and not (min(ids) >= 0 and max(ids) < self.vocabulary):
            position, wrong = next((i, value) for i, value in enumerate(ids) if not 0 <= value < self.vocabulary)
            raise MalformedRequestError(
                f"token id {wrong} is outside the vocabulary of {self.vocabulary}",
                where=f"{field}[{position}]",
                next_step="use the tokenizer that belongs to the served model",
            )

    def check_rank(self, rank: int | None) -> None:
        """Raise `MalformedRequestError` for a data-parallel rank that the server does not have."""
        if rank is not None and not 0 <= rank < self.ranks:
            raise MalformedRequestError(
                f"data-parallel rank {rank} is out of range", where=f"header {RANK_HEADER}", next_step=self.ranks_told
            )


def unknown_model(name: str, served: Iterable[str]) -> UnknownModelError:
    """Return the error of a model that is not among the served ones."""
    known = list(served)
    return UnknownModelError(
        f"the model {name!r} is not served here",
        where=f"this engine serves {', '.join(map(repr, known))}",
        next_step=close_names(name, known) or f"send model = {known[0]!r}",
    )
