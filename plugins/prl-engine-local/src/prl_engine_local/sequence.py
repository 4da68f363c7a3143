"""What the scheduler works on: a job (one request) and its sequences (one a choice)."""

from __future__ import annotations

import random
from concurrent.futures import Future
from dataclasses import dataclass, field

from prl.types import UNPUBLISHED, GenerateChoice, GenerateRequest, GenerateResponse, SamplingParams


@dataclass(eq=False, slots=True)
class Sequence:
    """One completion in the making.

    `tokens` are prompt and sampled ids; all but the last are in the cache while it runs. `random` is its own: what else
    is in the batch cannot change what it draws. `limit` is the length (tokens) at which it must end. `prefix` is
    what its row was filled with when it was admitted.
    """

    job: Job
    tokens: list[int]
    prompt_length: int
    limit: int
    random: random.Random
    stop_ids: frozenset[int]
    logprobs: list[float] = field(default_factory=list)
    finish_reason: str | None = None
    prefix: tuple[int, ...] = ()

    @property
    def sampling(self) -> SamplingParams:
        """The request's sampling fields."""
        return self.job.request.sampling

    def append(self, token: int, logprob: float) -> None:
        """Take a sampled token; decide whether the sequence ends."""
        self.tokens.append(token)
        self.logprobs.append(logprob)
        if token in self.stop_ids:  # the sampler draws none before min_tokens
            self.finish_reason = "stop"
        elif len(self.tokens) >= self.limit:
            self.finish_reason = "length"

    def choice(self) -> GenerateChoice:
        """Return the finished completion."""
        return GenerateChoice(
            token_ids=self.tokens[self.prompt_length :],
            logprobs=self.logprobs,
            finish_reason=self.finish_reason or "abort",
        )


@dataclass(eq=False, slots=True)
class Job:
    """One request, its sequences, and the future its answer goes to.

    `weight_version` is set when the first sequence starts: weights change only while no started job is unfinished.
    """

    request: GenerateRequest
    future: Future[GenerateResponse]
    order: int
    sequences: list[Sequence] = field(default_factory=list)
    weight_version: int = UNPUBLISHED
    prompt_logprobs: list[float | None] | None = None

    @classmethod
    def create(cls, request: GenerateRequest, *, order: int, seed: int, context: int) -> Job:
        """Make the job of a checked request; choice i draws from a seed derived from the request's and i."""
        job = cls(request, Future(), order)
        prompt = list(request.prompt_token_ids)
        params = request.sampling
        limit = context if params.max_tokens is None else min(context, len(prompt) + params.max_tokens)
        for index in range(params.n):
            job.sequences.append(
                Sequence(
                    job=job,
                    tokens=list(prompt),
                    prompt_length=len(prompt),
                    limit=limit,
                    random=random.Random(f"{seed}:{index}"),
                    stop_ids=frozenset(params.stop_token_ids),
                )
            )
        return job

    @property
    def is_finished(self) -> bool:
        """Whether every sequence has ended."""
        return all(sequence.finish_reason for sequence in self.sequences)

    def response(self) -> GenerateResponse:
        """Return the answer of a finished job."""
        prompt = len(self.request.prompt_token_ids)
        sampled = sum(len(sequence.logprobs) for sequence in self.sequences)
        return GenerateResponse(
            choices=tuple(sequence.choice() for sequence in self.sequences),
            weight_version=self.weight_version,
            prompt_token_ids=list(self.request.prompt_token_ids),
            prompt_logprobs=self.prompt_logprobs,
            usage={"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled},
            request_id=self.request.request_id,
        )
