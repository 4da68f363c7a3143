"""A teacher's log-probabilities lie at the tokens they belong to, or there are none: a shift would train on noise."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from prl.types import (
    AlignmentError,
    ConfigError,
    GenerateChoice,
    GenerateRequest,
    GenerateResponse,
    MalformedResponseError,
    TrainingSample,
)
from prl_train.data.packing import pack
from prl_train.teacher.logprobs import TeacherScorer, checked


class Echo:
    """Scores token t with -t / 10, and keeps the requests."""

    def __init__(self) -> None:
        self.requests: list[GenerateRequest] = []
        self.running = 0
        self.most = 0

    async def generate(self, request: GenerateRequest) -> GenerateResponse:
        self.requests.append(request)
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0.01)
        self.running -= 1
        scores: list[float | None] = [None, *(-token / 10 for token in request.prompt_token_ids[1:])]
        choice = GenerateChoice(token_ids=[1], logprobs=[-1.0], finish_reason="length")
        return GenerateResponse(choices=(choice,), weight_version=0, prompt_logprobs=scores)


def scorer(engine: Any, **options: Any) -> TeacherScorer:
    return TeacherScorer(engine, model="t", **options)


SAMPLE = TrainingSample(
    prompt_ids=[5, 6],
    completion_ids=[7, 8, 9],
    completion_mask=[True, False, True],
    completion_logprobs=[-0.1, 0.0, -0.2],
    temperatures=[1.0] * 3,
)


async def test_every_token_has_its_own_and_the_first_is_never_a_target() -> None:
    filled = await scorer(Echo()).fill(SAMPLE)
    assert filled.teacher_logprobs == [0.0, -0.6, -0.7, -0.8, -0.9]
    [row] = pack([filled], 16)
    assert row.teacher_logprobs == filled.teacher_logprobs
    assert row.loss_mask == [False, False, True, False, True]
    whole = TrainingSample(
        prompt_ids=[],
        completion_ids=[7, 8],
        completion_mask=[True, True],
        completion_logprobs=None,
        temperatures=[1.0] * 2,
    )
    [row] = pack([await scorer(Echo()).fill(whole)], 16)
    assert row.loss_mask == [False, True], "a sequence's first token has no context, so no log-probability"


async def test_the_prefix_cache_is_bypassed_and_as_little_sampled_as_the_route_allows() -> None:
    engine = Echo()
    asked = scorer(engine)
    await asked.fill(SAMPLE)
    await asked.fill(SAMPLE)
    first, second = engine.requests
    assert first.prompt_logprobs
    assert first.prompt_token_ids == [5, 6, 7, 8, 9]
    assert (first.sampling.max_tokens, first.sampling.temperature) == (1, 1.0)
    assert first.cache_salt
    assert first.cache_salt != second.cache_salt
    assert first.request_id
    assert first.request_id != second.request_id


async def test_no_more_samples_are_scored_at_once_than_asked() -> None:
    engine = Echo()
    asked = scorer(engine, max_concurrency=3)
    await asyncio.gather(*(asked.fill(SAMPLE) for _ in range(12)))
    assert engine.most == 3


@pytest.mark.parametrize(
    ("values", "kind", "message"),
    [
        (None, MalformedResponseError, "gave none"),
        ([None, -1.0], AlignmentError, "2 log-probabilities for 3 tokens"),
        ([None, -1.0, -1.0, -1.0], AlignmentError, "4 log-probabilities for 3 tokens"),
        ([None, None, -1.0], MalformedResponseError, "token 1 of 3 has None"),
        ([None, -1.0, math.nan], MalformedResponseError, "token 2 of 3 has nan"),
        ([None, -math.inf, -1.0], MalformedResponseError, "token 1 of 3 has -inf"),
        ([None, -1.0, 0.5], MalformedResponseError, r"token 2 of 3 has 0\.5"),
    ],
)
def test_what_is_no_log_probability_is_refused_not_filled_in(values: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message) as caught:
        checked(values, 3)
    assert caught.value.next_step  # type: ignore[attr-defined]


async def test_a_sample_that_fills_the_teachers_context_is_told_with_what_to_do() -> None:
    with pytest.raises(ConfigError, match="5 tokens, and the teacher's context of 5") as caught:
        await scorer(Echo(), context=5).fill(SAMPLE)
    assert "longer than the student's" in caught.value.next_step
    assert await scorer(Echo(), context=6).fill(SAMPLE)


async def test_images_cannot_be_scored_by_ids() -> None:
    from dataclasses import replace

    with pytest.raises(ConfigError, match="images"):
        await scorer(Echo()).fill(replace(SAMPLE, pixel_values=[[0.0]]))
