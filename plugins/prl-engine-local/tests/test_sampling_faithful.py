"""The engine's log-probabilities equal a plain forward pass: without this a trainer learns from wrong ratios."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from prl.types import GenerateRequest, GenerateResponse, SamplingParams


def ask(prompt: list[int], **sampling: Any) -> GenerateRequest:
    return GenerateRequest(model="tiny", prompt_token_ids=prompt, sampling=SamplingParams(**sampling))


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return random.Random(f"{seed}/{length}").choices(range(600), k=length)


def assert_equals_plain(response: GenerateResponse, plain: Any, logprobs_of: Any, temperature: float = 1.0) -> None:
    prompt = response.prompt_token_ids
    for choice in response.choices:
        expected = logprobs_of(plain, prompt + choice.token_ids, temperature)[len(prompt) - 1 :]
        assert len(choice.logprobs) == len(choice.token_ids)
        assert choice.logprobs == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"prefill_tokens": 7},
        {"max_batch_size": 3},
        {"attention": "eager"},
    ],
    ids=["one batch", "prompts in blocks", "three rows", "eager attention"],
)
async def test_logprobs_of_mixed_lengths_equal_a_plain_forward(
    make_engine: Any, plain_model: Any, logprobs_of: Any, options: dict[str, Any]
) -> None:
    engine = await make_engine(**options)
    lengths = [1, 2, 3, 17, 40, 5, 90, 1, 33, 64, 8, 120]
    temperatures = [1.0, 0.7, 1.3]

    async def one(i: int, length: int) -> GenerateResponse:
        await asyncio.sleep(0.004 * (i % 4))  # so that requests join a batch which is already running
        return await engine.generate(
            ask(prompt_of(length, i), max_tokens=4 + 7 * (i % 5), temperature=temperatures[i % 3], seed=i)
        )

    responses = await asyncio.gather(*(one(i, length) for i, length in enumerate(lengths)))
    for i, response in enumerate(responses):
        assert [len(choice.token_ids) for choice in response.choices] == [4 + 7 * (i % 5)]
        assert_equals_plain(response, plain_model, logprobs_of, temperatures[i % 3])
    counters = engine.core.scheduler.counters
    assert counters.sampled_tokens == sum(4 + 7 * (i % 5) for i in range(12))
    assert counters.largest_batch > 1, "requests were served one at a time"


async def test_prompts_too_long_for_one_mask_are_filled_in_narrower_blocks(
    make_engine: Any, plain_model: Any, logprobs_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from prl_engine_local import runner

    engine = await make_engine()
    widths: list[int] = []
    original = runner.ModelRunner._block

    def noting(self: Any, start: int, rows: list[list[int]], offset: int, *, head: bool) -> Any:
        widths.append(max(map(len, rows)))
        return original(self, start, rows, offset, head=head)

    monkeypatch.setattr(runner, "MASK_ELEMENTS", 1000)
    monkeypatch.setattr(runner.ModelRunner, "_block", noting)
    response = await engine.generate(ask(prompt_of(101), max_tokens=5))
    assert widths == [10] * 10
    assert_equals_plain(response, plain_model, logprobs_of)


async def test_sequences_thrown_out_for_memory_resume_exactly(
    make_engine: Any, plain_model: Any, logprobs_of: Any
) -> None:
    roomy, tight = await make_engine(), await make_engine(max_batch_tokens=256)
    requests = [ask(prompt_of(5, i), max_tokens=90, seed=i) for i in range(6)]
    responses = await asyncio.gather(*(tight.generate(request) for request in requests))
    expected = await asyncio.gather(*(roomy.generate(request) for request in requests))
    assert tight.core.scheduler.counters.preempted > 0, "the case this test is for did not happen"
    for response, other in zip(responses, expected, strict=True):
        assert response.choices[0].token_ids == other.choices[0].token_ids
        assert_equals_plain(response, plain_model, logprobs_of)


async def test_requests_share_steps(make_engine: Any) -> None:
    """Twenty concurrent requests take about the steps of one: batching is real."""
    engine = await make_engine()
    await asyncio.gather(*(engine.generate(ask(prompt_of(5 + i), max_tokens=20)) for i in range(20)))
    assert engine.core.scheduler.counters.largest_batch > 10
    assert engine.core.scheduler.counters.steps < 3 * 20


async def test_choices_of_one_prompt_are_prefilled_once_and_still_exact(
    make_engine: Any, plain_model: Any, logprobs_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from prl_engine_local.runner import ModelRunner

    filled: list[int] = []
    original = ModelRunner.prefill

    def counting(self: ModelRunner, start: int, prefixes: Any) -> None:
        filled.append(len(prefixes))
        original(self, start, prefixes)

    engine = await make_engine()
    monkeypatch.setattr(ModelRunner, "prefill", counting)
    response = await engine.generate(ask(prompt_of(50), n=6, seed=3, max_tokens=12))
    assert filled == [1]
    assert len({tuple(choice.token_ids) for choice in response.choices}) == 6
    assert_equals_plain(response, plain_model, logprobs_of)


async def test_same_seed_gives_same_tokens_whatever_else_runs(make_engine: Any) -> None:
    engine = await make_engine()
    alone = await engine.generate(ask(prompt_of(20), n=2, seed=11, max_tokens=30))
    crowd = [engine.generate(ask(prompt_of(3 + 9 * i, 5), max_tokens=30, temperature=1.5)) for i in range(10)]
    again, *_ = await asyncio.gather(engine.generate(ask(prompt_of(20), n=2, seed=11, max_tokens=30)), *crowd)
    assert [c.token_ids for c in again.choices] == [c.token_ids for c in alone.choices]
    single = await engine.generate(ask(prompt_of(20), seed=11, max_tokens=30))
    assert single.choices[0].token_ids == alone.choices[0].token_ids, "choice 0 must not depend on n"
    other = await engine.generate(ask(prompt_of(20), seed=12, max_tokens=30))
    assert other.choices[0].token_ids != alone.choices[0].token_ids


async def test_engine_seed_makes_unseeded_requests_repeatable(make_engine: Any) -> None:
    first = await (await make_engine(seed=5)).generate(ask(prompt_of(9), max_tokens=20))
    second = await (await make_engine(seed=5)).generate(ask(prompt_of(9), max_tokens=20))
    assert first.choices[0].token_ids == second.choices[0].token_ids


async def test_temperature_zero_takes_the_likeliest_token_and_reports_it_at_temperature_one(
    make_engine: Any, plain_model: Any, logprobs_of: Any
) -> None:
    engine = await make_engine()
    greedy, _ = await asyncio.gather(
        engine.generate(ask(prompt_of(12), temperature=0, max_tokens=8)),
        engine.generate(ask(prompt_of(30), temperature=1, max_tokens=8)),  # a batch of both kinds
    )
    ids = prompt_of(12)
    for token in greedy.choices[0].token_ids:
        with torch.no_grad():
            assert token == int(plain_model(input_ids=torch.tensor([ids])).logits[0, -1].argmax())
        ids.append(token)
    assert_equals_plain(greedy, plain_model, logprobs_of)


@pytest.mark.parametrize("params", [{"top_k": 3}, {"top_p": 0.4}, {"top_k": 8, "top_p": 0.6}])
async def test_truncated_draws_stay_inside_the_kept_set_and_report_the_whole_distribution(
    make_engine: Any, plain_model: Any, logprobs_of: Any, params: dict[str, Any]
) -> None:
    engine = await make_engine()
    response = await engine.generate(ask(prompt_of(12), n=30, seed=1, max_tokens=1, **params))
    with torch.no_grad():
        probabilities = torch.softmax(plain_model(input_ids=torch.tensor([prompt_of(12)])).logits[0, -1], -1)
    ordered, order = probabilities.sort(descending=True)
    kept = ordered[: params.get("top_k", 600)]
    kept = kept / kept.sum()
    size = int((kept.cumsum(0) - kept < params.get("top_p", 1.1)).sum())
    drawn = {choice.token_ids[0] for choice in response.choices}
    assert drawn <= set(order[:size].tolist())
    assert len(drawn) > 1
    assert_equals_plain(response, plain_model, logprobs_of)


def test_a_token_of_probability_zero_is_never_drawn() -> None:
    """The lowest and the highest possible draw, where both ends of the vocabulary are impossible."""
    import random

    from prl_engine_local.sampling import BITS, Sampler
    from prl_engine_local.sequence import Job

    class Fixed(random.Random):
        def __init__(self, bits: int) -> None:
            self.bits = bits

        def getrandbits(self, k: int) -> int:
            return self.bits

    sequences = []
    for bits in (0, (1 << BITS) - 1):
        job = Job.create(ask([1]), order=0, seed=0, context=9)
        job.sequences[0].random = Fixed(bits)
        sequences += job.sequences
    impossible = float("-inf")
    logits = torch.tensor([[impossible, impossible, 0.3, 0.1, impossible]] * 2)
    assert Sampler(sequences, torch.device("cpu")).draw(logits)[0] == [2, 3]


async def test_draws_follow_the_distribution(make_engine: Any, plain_model: Any) -> None:
    """A biased sampler would make every importance ratio wrong without any error."""
    engine = await make_engine(max_batch_size=512)
    count = 1000
    response = await engine.generate(ask(prompt_of(7), n=count, seed=2, max_tokens=1))
    with torch.no_grad():
        probabilities = torch.softmax(plain_model(input_ids=torch.tensor([prompt_of(7)])).logits[0, -1], -1)
    likely = probabilities.topk(5).indices.tolist()
    drawn = [choice.token_ids[0] for choice in response.choices]
    for token in likely:
        p = float(probabilities[token])
        assert abs(drawn.count(token) / count - p) < 4 * (p * (1 - p) / count) ** 0.5


async def test_prompt_logprobs_equal_a_plain_forward(make_engine: Any, plain_model: Any, logprobs_of: Any) -> None:
    engine = await make_engine(prefill_tokens=16)
    requests = [
        GenerateRequest(
            model="tiny",
            prompt_token_ids=prompt_of(length),
            sampling=SamplingParams(max_tokens=3, temperature=0.5, n=2, seed=1),
            prompt_logprobs=True,
        )
        for length in (1, 2, 16, 17, 70)
    ]
    responses = await asyncio.gather(*(engine.generate(request) for request in requests))
    for request, response in zip(requests, responses, strict=True):
        assert response.prompt_logprobs is not None
        assert response.prompt_logprobs[0] is None
        assert len(response.prompt_logprobs) == len(request.prompt_token_ids)
        if len(request.prompt_token_ids) > 1:
            expected = logprobs_of(plain_model, request.prompt_token_ids)
            assert response.prompt_logprobs[1:] == pytest.approx(expected, abs=1e-4)
        assert_equals_plain(response, plain_model, logprobs_of, 0.5)
    without = await engine.generate(ask(prompt_of(5), max_tokens=1))
    assert without.prompt_logprobs is None


async def test_sliding_window_layers_are_masked_by_their_window(
    make_engine: Any, new_model: Callable[..., Any], save: Callable[..., str], logprobs_of: Any
) -> None:
    """A cache that ignored the window would be right only for short prompts."""
    model = new_model(
        3,
        use_sliding_window=True,
        sliding_window=8,
        max_window_layers=1,
        layer_types=["full_attention", "sliding_attention"],
    )
    engine = await make_engine(model=save(model, "window"), prefill_tokens=10)
    responses = await asyncio.gather(
        *(engine.generate(ask(prompt_of(length), max_tokens=12)) for length in (4, 30, 61))
    )
    for response in responses:
        assert_equals_plain(response, model, logprobs_of)


async def test_long_rows_after_many_short_ones_keep_memory_in_bounds(make_engine: Any) -> None:
    """Widest times longest of different moments must not add up in one allocation."""
    engine = await make_engine(max_batch_tokens=1024)
    await asyncio.gather(*(engine.generate(ask(prompt_of(3, i), max_tokens=4)) for i in range(30)))
    await engine.generate(ask(prompt_of(200), max_tokens=40))
    cache = engine.core.scheduler._batch._runner.cache
    tensor = cache._keys[0]
    assert tensor.shape[0] * tensor.shape[2] <= 1.25 * (1024 + 64 * 30)
