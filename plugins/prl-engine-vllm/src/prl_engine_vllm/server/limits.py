"""What a request is checked against before the engine sees it: vLLM leaves some to flags, and dies of the rest."""

from __future__ import annotations

from dataclasses import dataclass

from prl.serving.limits import TokenLimits
from prl.types import MalformedRequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits(TokenLimits):
    """What the model and the server can do, and what they cannot."""

    scores_prompts: bool = True

    def check_scoring(self, is_wanted: object) -> None:
        """Raise `MalformedRequestError` for prompt log-probabilities where asking for them would end the server."""
        if is_wanted and not self.scores_prompts:
            raise MalformedRequestError(
                "vLLM's CPU build cannot give prompt_logprobs while adapters are on",
                where="prompt_logprobs",
                next_step="start a server without adapters for teacher log-probabilities",
            )
