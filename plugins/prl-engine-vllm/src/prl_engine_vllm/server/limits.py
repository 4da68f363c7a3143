"""What a request is checked against before the engine sees it: vLLM leaves some to flags, and dies of the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prl.types import MalformedRequestError, PromptTooLongError

BYTES_PER_ID = 24  # the longest id, its comma, and generous white space
OTHER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """The model's vocabulary (ids) and context (tokens), the server's ranks, and what it cannot do."""

    vocabulary: int
    context: int
    ranks: int
    scores_prompts: bool = True

    @property
    def body_bytes(self) -> int:
        """The largest body that can hold a prompt and stop ids."""
        return BYTES_PER_ID * (self.context + self.vocabulary) + OTHER_BYTES

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

    def check_scoring(self, is_wanted: object) -> None:
        """Raise `MalformedRequestError` for prompt log-probabilities where asking for them would end the server."""
        if is_wanted and not self.scores_prompts:
            raise MalformedRequestError(
                "vLLM's CPU build cannot give prompt_logprobs while adapters are on",
                where="prompt_logprobs",
                next_step="start a server without adapters for teacher log-probabilities",
            )

    def check_ids(self, ids: Sequence[int], field: str) -> None:
        """Raise `MalformedRequestError` for an id outside the vocabulary: such an id would end the whole server."""
        if ids and not (min(ids) >= 0 and max(ids) < self.vocabulary):
            position, wrong = next((i, value) for i, value in enumerate(ids) if not 0 <= value < self.vocabulary)
            raise MalformedRequestError(
                f"token id {wrong} is outside the vocabulary of {self.vocabulary}",
                where=f"{field}[{position}]",
                next_step="use the tokenizer that belongs to the served model",
            )
