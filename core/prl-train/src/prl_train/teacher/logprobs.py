"""A teacher's log-probabilities of our samples, by prefill over `/v1/generate`."""

from __future__ import annotations

import asyncio
import math
import uuid
from dataclasses import replace

from prl.contracts import EngineClient
from prl.types import (
    AlignmentError,
    ConfigError,
    GenerateRequest,
    MalformedResponseError,
    SamplingParams,
    TrainingSample,
)

FIRST = 0.0
"""What stands at a sequence's first token: it has no context, so no log-probability, and is never a target."""

WHERE = "the teacher's prompt_logprobs"


class TeacherScorer:
    """Asks an engine how likely it finds whole sequences, at temperature 1.

    The route samples at least one token, which is thrown away. A salt that nobody else has keeps the prefix cache out:
    engines give no log-probabilities of what they did not compute. A request that is sent again carries the same key.
    """

    def __init__(
        self, engine: EngineClient, *, model: str, max_concurrency: int = 16, context: int | None = None
    ) -> None:
        self.engine = engine
        self.model = model
        self.context = context
        self._room = asyncio.Semaphore(max_concurrency)

    async def fill(self, sample: TrainingSample) -> TrainingSample:
        """Return the sample with `teacher_logprobs`, which cover `prompt_ids + completion_ids`."""
        if sample.pixel_values is not None:
            raise ConfigError(
                "a sample has images, which the teacher's route for token ids cannot take",
                where=f"sample of trajectory {sample.trajectory_id!r}, [teacher.logprobs]",
                next_step="train without [teacher.logprobs], or without images",
            )
        return replace(sample, teacher_logprobs=await self.score([*sample.prompt_ids, *sample.completion_ids]))

    async def score(self, ids: list[int]) -> list[float]:
        """Return one log-probability per id: `score(ids)[i]` is that of `ids[i]` after `ids[:i]`, and `FIRST` at 0.

        Raises `MalformedResponseError` where counts differ or a value is no log-probability, and `PromptTooLongError`.
        """
        if self.context is not None and len(ids) >= self.context:
            raise _too_long(len(ids), self.context)
        request = GenerateRequest(
            model=self.model,
            prompt_token_ids=ids,
            sampling=SamplingParams(max_tokens=1),
            prompt_logprobs=True,
            cache_salt=f"teacher-{uuid.uuid4().hex}",
            request_id=uuid.uuid4().hex,
        )
        async with self._room:
            answer = await self.engine.generate(request)
        return checked(answer.prompt_logprobs, len(ids))


def checked(values: list[float | None] | None, length: int) -> list[float]:
    """Return an engine's prompt log-probabilities with `FIRST` at the first; raise unless every other one is real."""
    if values is None:
        raise _malformed("the engine gave none")
    if len(values) != length:
        raise AlignmentError(
            f"{len(values)} log-probabilities for {length} tokens",
            where=WHERE,
            next_step="check that the teacher is a prl engine of the same version; nothing was filled in",
        )
    rest: list[float] = []
    for position, value in enumerate(values[1:], 1):
        if value is None or not math.isfinite(value) or value > 1e-3:
            raise _malformed(f"token {position} of {length} has {value}")
        rest.append(value)
    return [FIRST, *rest]


def _malformed(what: str) -> MalformedResponseError:
    return MalformedResponseError(
        what,
        where=WHERE,
        next_step="a prefix cache that ignores cache_salt gives none for what it holds: switch it off at the teacher",
    )


def _too_long(length: int, context: int) -> ConfigError:
    return ConfigError(
        f"a sample has {length} tokens, and the teacher's context of {context} leaves none to sample",
        where="[teacher.logprobs]",
        next_step="serve the teacher with a context longer than the student's by at least one token",
    )
