"""A pool over real engines: answers belong to the weights they name, whatever comes and goes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from engines.local import LocalServer, local_server, make_model
from prl.client import EnginePool, FixedAddresses, HttpEngineClient, PoolSettings, create_renderer_mode
from prl.types import GenerateRequest, SamplingParams

pytestmark = pytest.mark.heavy

PROMPTS = [[5 + number, 6, 7, 8] for number in range(6)]
SETTINGS = PoolSettings(backoff=0.02, patience=60.0, health_interval=0.1, max_concurrency=8)
GREEDY = SamplingParams(max_tokens=12, temperature=0.0)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("models")
    return [make_model(folder / str(seed), seed=seed) for seed in range(2)]


@pytest.fixture(scope="module")
def pair(models: list[Path]) -> Iterator[list[LocalServer]]:
    with local_server(models[0], max_model_len=200) as one, local_server(models[0], max_model_len=200) as two:
        yield [one, two]


def ask(prompt: Sequence[int]) -> GenerateRequest:
    return GenerateRequest(model="tiny", prompt_token_ids=prompt, sampling=GREEDY)


async def until_all_ready(pool: EnginePool) -> None:
    async with asyncio.timeout(60):
        while not all(one.ready for one in pool.status()):
            await asyncio.sleep(0.02)


async def test_a_hundred_updates_in_flight_and_each_answer_is_of_the_version_it_names(
    pair: list[LocalServer], models: list[Path]
) -> None:
    """Tokens under a wrong version would be trained with a wrong importance ratio, and nothing would show it."""
    pool = EnginePool(FixedAddresses([server.url for server in pair]), SETTINGS)
    try:
        await pool.models()
        await until_all_ready(pool)
        right: list[list[list[int]]] = []
        for version, model in enumerate(models):
            await pool.load_weights(str(model), version)
            right.append([(await pool.generate(ask(prompt))).choices[0].token_ids for prompt in PROMPTS])
        assert right[0] != right[1]
        done = asyncio.Event()
        seen: dict[int, int] = {}

        async def play(number: int) -> None:
            rollout = pool.for_rollout()
            while not done.is_set():
                answer = await rollout.generate(ask(PROMPTS[number]))
                version = answer.weight_version
                assert answer.choices[0].token_ids == right[version % 2][number], f"tokens are not of {version}"
                seen[version] = seen.get(version, 0) + 1

        players = [asyncio.create_task(play(number)) for number in range(len(PROMPTS))]
        for version in range(2, 102):
            await pool.load_weights(str(models[version % 2]), version)
        done.set()
        await asyncio.gather(*players)
        assert len(seen) > 50
        assert max(seen) >= 100
    finally:
        await pool.close()


async def test_an_engines_own_model_does_not_pass_for_the_weights_that_a_run_begins_with(
    pair: list[LocalServer], models: list[Path]
) -> None:
    """It was started with another checkpoint and restarts unseen: rollouts of that model would be trained as ours."""
    settings = PoolSettings(backoff=0.02, patience=60.0, health_interval=60.0)
    pool = EnginePool(FixedAddresses([pair[0].url]), settings)
    try:
        await pool.load_weights(str(models[1]), 0)
        ours = await pool.generate(ask(PROMPTS[0]))
        await asyncio.to_thread(pair[0].stop)
        await asyncio.to_thread(pair[0].start)
        alone = HttpEngineClient(pair[0].url)
        its_own = await alone.generate(ask(PROMPTS[0]))
        await alone.close()
        assert its_own.weight_version == -1
        assert its_own.choices[0].token_ids != ours.choices[0].token_ids
        after = await pool.generate(ask(PROMPTS[0]))
        assert (after.weight_version, after.choices[0].token_ids) == (0, ours.choices[0].token_ids)
    finally:
        await pool.close()


async def test_rollouts_go_on_while_an_engine_dies_and_comes_back(pair: list[LocalServer], models: list[Path]) -> None:
    from prl import create_renderer, load_tokenizer

    renderer = create_renderer(load_tokenizer(str(models[0])), "qwen3", thinking_retention="all")
    pool = EnginePool(FixedAddresses([server.url for server in pair]), SETTINGS)
    try:
        await pool.load_weights(str(models[1]), 7)
        await until_all_ready(pool)
        mode = create_renderer_mode(pool, renderer)

        async def play(number: int) -> None:
            session = mode.session(model="tiny", seed=number)
            before: list[int] = []
            for _ in range(5):
                turn = await session.turn([{"role": "user", "content": "go"}], SamplingParams(max_tokens=2))
                assert turn.weight_version == 7, "the new process was given the weights before it was given work"
                assert turn.prompt_ids[: len(before)] == before, "the rollout's prompt is the same on any engine"
                before = [*turn.prompt_ids, *turn.completion_ids]
                await asyncio.sleep(0.1)

        rollouts = [asyncio.create_task(play(number)) for number in range(12)]
        await asyncio.sleep(0.15)
        await asyncio.to_thread(pair[0].stop)
        await asyncio.to_thread(pair[0].start)
        await asyncio.gather(*rollouts)
        await until_all_ready(pool)
        assert [one.weight_version for one in pool.status()] == [7, 7]
    finally:
        await pool.close()
