"""One suite for every engine that serves prl's routes: subclass `EngineSuite` and give it a `served` engine.

The same requests go to each, over HTTP, and the answers must have the same shape, codes and meaning.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest

from engines.bad_input import Route, check_route
from prl.client import HttpEngineClient
from prl.types import (
    EngineError,
    GenerateRequest,
    GenerateResponse,
    MalformedRequestError,
    PromptTooLongError,
    SamplingParams,
)

SECONDS = 60.0  # what answers later than this hangs
CHAT = "/v1/chat/completions"
CHAT_TOKENS = "/v1/chat/completions/tokens"


@dataclass(frozen=True, kw_only=True)
class Served:
    """A running engine of a small model with a chat format.

    `weights` and `other_weights` are safetensors directories that fit the model: its own, and different ones.
    `vocabulary` is the number of token ids the model knows, `context` its length in tokens. `routes` are those that get
    bad input.
    """

    url: str
    model: str
    vocabulary: int
    context: int
    weights: str
    other_weights: str
    routes: tuple[str, ...] = ("/v1/generate", CHAT, CHAT_TOKENS, "/tokenize", "/v1/weights")
    examples: int = 60


class Call:
    """Sends raw requests, as a client of any language would."""

    def __init__(self, served: Served) -> None:
        self.served = served

    async def __call__(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        """Return status and decoded body; a body of bytes is sent as it is."""
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", **(headers or {})}
        timeout = aiohttp.ClientTimeout(total=SECONDS)
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.request(method, self.served.url + path, data=data, headers=headers) as answer,
        ):
            raw = await answer.read()
            return answer.status, json.loads(raw) if raw else None

    def generate(self, **changes: Any) -> dict[str, Any]:
        """Return a small generate body."""
        return {"model": self.served.model, "prompt_token_ids": [5, 6, 7], "max_tokens": 4, "seed": 1} | changes

    def chat(self, **changes: Any) -> dict[str, Any]:
        """Return a small chat body."""
        messages = [{"role": "user", "content": "hi"}]
        return {"model": self.served.model, "messages": messages, "max_tokens": 4, "temperature": 0.0} | changes


def request(served: Served, prompt: list[int] | None = None, **sampling: Any) -> GenerateRequest:
    """Return a small typed request."""
    params = SamplingParams(**{"max_tokens": 6, "temperature": 1.0, "seed": 3} | sampling)
    return GenerateRequest(model=served.model, prompt_token_ids=prompt or [5, 6, 7, 8], sampling=params)


class EngineSuite:
    """Subclass, and define a fixture `served` of class scope or wider."""

    @pytest.fixture
    def call(self, served: Served) -> Call:
        return Call(served)

    @pytest.fixture
    async def client(self, served: Served) -> AsyncIterator[HttpEngineClient]:
        client = HttpEngineClient(served.url, timeout=SECONDS, retries=1)
        yield client
        await client.close()

    async def test_it_says_that_it_is_well_and_what_it_serves(self, client: HttpEngineClient, served: Served) -> None:
        assert await client.health()
        cards = await client.models()
        assert (cards[0]["id"], cards[0]["max_model_len"]) == (served.model, served.context)

    async def test_an_answer_has_the_fields_of_the_exchange(self, call: Call) -> None:
        status, answer = await call("POST", "/v1/generate", call.generate(prompt_logprobs=True, request_id="shape"))
        assert status == 200, answer
        assert {"choices", "prompt_token_ids", "prompt_logprobs", "usage", "weight_version", "request_id"} <= set(
            answer
        )
        [choice] = answer["choices"]
        assert {"token_ids", "logprobs", "finish_reason", "routed_experts"} <= set(choice)
        assert len(choice["token_ids"]) == len(choice["logprobs"]) == 4
        assert choice["finish_reason"] == "length"
        assert answer["prompt_token_ids"] == [5, 6, 7]
        assert answer["prompt_logprobs"][0] is None
        assert all(value < 0 for value in answer["prompt_logprobs"][1:])
        assert isinstance(answer["weight_version"], int)
        assert answer["request_id"] == "shape"
        assert answer["usage"]["prompt_tokens"] == 3
        assert answer["usage"]["completion_tokens"] == 4
        assert answer["usage"]["total_tokens"] == 7

    async def test_a_retry_is_not_a_second_sampling(self, call: Call) -> None:
        """The first answer may be the one that was lost on its way; a retry may also come by another rank."""
        body = call.generate(seed=None, max_tokens=12, request_id="one-key")
        first, again, by_rank = [
            await call("POST", "/v1/generate", body, headers) for headers in ({}, {}, {"X-data-parallel-rank": "0"})
        ]
        assert first[0] == 200
        assert first[1]["choices"] == again[1]["choices"] == by_rank[1]["choices"]
        status, answer = await call("POST", "/v1/generate", {**body, "max_tokens": 11})
        assert (status, answer["error"]["code"]) == (400, "malformed_request"), "one key, two requests"

    async def test_the_likeliest_tokens_are_always_the_same(self, client: HttpEngineClient, served: Served) -> None:
        first, again = [await client.generate(request(served, temperature=0.0, seed=None)) for _ in range(2)]
        assert first.choices[0].token_ids == again.choices[0].token_ids

    async def test_a_seed_gives_the_same_tokens_whatever_else_runs(
        self, client: HttpEngineClient, served: Served
    ) -> None:
        alone = await client.generate(request(served, seed=11))
        beside = await asyncio.gather(*(client.generate(request(served, seed=seed)) for seed in range(5, 17)))
        assert beside[6].choices[0].token_ids == alone.choices[0].token_ids
        assert len({tuple(answer.choices[0].token_ids) for answer in beside}) > 1

    async def test_n_completions_differ_and_are_counted(self, client: HttpEngineClient, served: Served) -> None:
        answer = await client.generate(request(served, n=3, max_tokens=8))
        assert len({tuple(choice.token_ids) for choice in answer.choices}) == 3
        assert answer.usage["completion_tokens"] == sum(len(choice.token_ids) for choice in answer.choices)

    async def test_logprobs_agree_with_the_prompts_of_a_second_request(
        self, client: HttpEngineClient, served: Served
    ) -> None:
        """What the sampler reported is what the model says when it reads the same tokens."""
        answer = await client.generate(request(served))
        [choice] = answer.choices
        whole = [5, 6, 7, 8, *choice.token_ids]
        again = await client.generate(
            GenerateRequest(
                model=served.model,
                prompt_token_ids=whole,
                sampling=SamplingParams(max_tokens=1),
                prompt_logprobs=True,
            )
        )
        assert again.prompt_logprobs is not None
        assert again.prompt_logprobs[4:] == pytest.approx(choice.logprobs, abs=1e-3)

    async def test_exactly_the_requests_stop_ids_end_a_completion(
        self, client: HttpEngineClient, served: Served
    ) -> None:
        free = await client.generate(request(served, temperature=0.0, max_tokens=8))
        tokens = free.choices[0].token_ids
        stop = tokens[3]
        stopped = await client.generate(request(served, temperature=0.0, max_tokens=8, stop_token_ids=[stop]))
        [choice] = stopped.choices
        assert choice.token_ids == tokens[: tokens.index(stop) + 1]
        assert choice.finish_reason == "stop"

    async def test_min_tokens_keep_a_stop_id_from_being_drawn(self, client: HttpEngineClient, served: Served) -> None:
        first = (await client.generate(request(served, temperature=0.0))).choices[0].token_ids[0]
        answer = await client.generate(
            request(served, temperature=0.0, min_tokens=4, max_tokens=6, stop_token_ids=[first])
        )
        assert first not in answer.choices[0].token_ids[:4]
        assert len(answer.choices[0].token_ids) >= 4

    async def test_without_max_tokens_the_context_is_the_bound(self, client: HttpEngineClient, served: Served) -> None:
        """A fixed default would silently cut every rollout."""
        prompt = [5] * (served.context - 20)
        answer = await client.generate(request(served, prompt, max_tokens=None))
        assert len(answer.choices[0].token_ids) == 20
        assert answer.choices[0].finish_reason == "length"

    async def test_requests_at_once_get_their_own_answers(self, client: HttpEngineClient, served: Served) -> None:
        prompts = [[5 + number, 6, 7] for number in range(24)]
        answers = await asyncio.gather(*(client.generate(request(served, prompt, seed=1)) for prompt in prompts))
        assert [answer.prompt_token_ids for answer in answers] == prompts
        assert all(len(answer.choices[0].token_ids) == 6 for answer in answers)

    async def test_a_client_that_goes_away_leaves_the_engine_free(
        self, client: HttpEngineClient, served: Served
    ) -> None:
        long = [asyncio.create_task(client.generate(request(served, max_tokens=None, seed=i))) for i in range(16)]
        await asyncio.sleep(0.05)
        for task in long:
            task.cancel()
        await asyncio.gather(*long, return_exceptions=True)
        answer = await asyncio.wait_for(client.generate(request(served)), SECONDS)
        assert len(answer.choices[0].token_ids) == 6

    @pytest.mark.parametrize(
        ("changes", "status", "code"),
        [
            ({"prompt_token_ids": "abc"}, 422, "malformed_request"),
            ({"prompt_token_ids": [1, "2"]}, 422, "malformed_request"),
            ({"prompt_token_ids": [1, 2.5]}, 422, "malformed_request"),
            ({"prompt_token_ids": [1, True]}, 422, "malformed_request"),
            ({"max_tokens": 0}, 422, "malformed_request"),
            ({"temperature": -1}, 422, "malformed_request"),
            ({"max_token": 5}, 422, "malformed_request"),
            ({"min_tokens": 5}, 422, "malformed_request"),
            ({"seed": 2**70}, 422, "malformed_request"),
            ({"priority": -(2**70)}, 422, "malformed_request"),
            ({"prompt_token_ids": [-1]}, 400, "malformed_request"),
            ({"prompt_token_ids": []}, 400, "malformed_request"),
            ({"stop_token_ids": [-5]}, 400, "malformed_request"),
            ({"model": "other"}, 404, "unknown_model"),
        ],
    )
    async def test_a_wrong_field_is_a_typed_error(
        self, call: Call, changes: dict[str, Any], status: int, code: str
    ) -> None:
        got, answer = await call("POST", "/v1/generate", call.generate(**changes))
        assert (got, answer["error"]["code"]) == (status, code), answer
        assert all(answer["error"][part] for part in ("message", "where", "next_step"))
        assert bool(answer["error"].get("fields")) is (status == 422)

    async def test_ids_outside_the_vocabulary_and_overlong_prompts(
        self, client: HttpEngineClient, served: Served
    ) -> None:
        for token in (served.vocabulary, 2**40):
            with pytest.raises(MalformedRequestError):
                await client.generate(request(served, [5, token]))
        for length in (served.context, served.context + 1, served.context * 3):
            with pytest.raises(PromptTooLongError):
                await client.generate(request(served, [5] * length))
        assert await client.health()

    @pytest.mark.parametrize(("rank", "status"), [("0", 200), ("999", 400), ("-1", 400), ("x", 400), ("", 400)])
    async def test_the_data_parallel_rank_is_checked(self, call: Call, rank: str, status: int) -> None:
        got, _ = await call("POST", "/v1/generate", call.generate(), {"X-data-parallel-rank": rank})
        assert got == status

    async def test_a_chat_answers_as_openai_does_with_the_exact_ids(self, call: Call, client: HttpEngineClient) -> None:
        status, answer = await call("POST", CHAT, call.chat(logprobs=True, return_token_ids=True))
        assert status == 200, answer
        [choice] = answer["choices"]
        assert (answer["object"], choice["index"], choice["message"]["role"]) == ("chat.completion", 0, "assistant")
        assert isinstance(answer["weight_version"], int)
        prompt = answer["prompt_token_ids"]
        values = [entry["logprob"] for entry in choice["logprobs"]["content"]]
        direct = await self._greedy(call, client, prompt)
        assert choice["token_ids"] == direct.choices[0].token_ids[: len(choice["token_ids"])]
        assert values == pytest.approx(direct.choices[0].logprobs[: len(values)], abs=1e-3)
        assert await client.tokenize({"model": call.served.model, "messages": call.chat()["messages"]}) == prompt

    async def test_a_chat_with_prompt_ids_obeys_them(self, call: Call, client: HttpEngineClient) -> None:
        """Messages that say something else must not reach the model."""
        tokens = [9, 8, 7, 6, 5]
        status, answer = await call("POST", CHAT_TOKENS, call.chat(tokens=tokens, logprobs=True, return_token_ids=True))
        assert status == 200, answer
        assert answer["prompt_token_ids"] == tokens
        direct = await self._greedy(call, client, tokens)
        ids = answer["choices"][0]["token_ids"]
        assert ids == direct.choices[0].token_ids[: len(ids)]
        assert answer["usage"]["prompt_tokens"] == 5

    @staticmethod
    async def _greedy(call: Call, client: HttpEngineClient, prompt: list[int]) -> GenerateResponse:
        return await client.generate(request(call.served, prompt, temperature=0.0, max_tokens=4, seed=None))

    async def test_weights_change_the_answers_and_the_version(self, client: HttpEngineClient, served: Served) -> None:
        ask = request(served, temperature=0.0, max_tokens=8)
        before = await client.generate(ask)
        try:
            await client.load_weights(served.other_weights, 41)
            other = await client.generate(ask)
            with pytest.raises(EngineError):
                await client.load_weights("/no/such/directory", 42)
            still = await client.generate(ask)
        finally:
            await client.load_weights(served.weights, 43)
        after = await client.generate(ask)
        assert (other.weight_version, still.weight_version, after.weight_version) == (41, 41, 43)
        assert other.choices[0].logprobs != before.choices[0].logprobs
        assert still.choices[0].token_ids == other.choices[0].token_ids
        assert after.choices[0].token_ids == before.choices[0].token_ids
        assert after.choices[0].logprobs == pytest.approx(before.choices[0].logprobs, abs=1e-5)

    @pytest.mark.parametrize("directory", ["/" + "d" * 5000, "/no\0where", "/no/such/directory", __file__])
    async def test_a_path_that_holds_no_weights_is_named_as_such(self, call: Call, directory: str) -> None:
        """Also one that the system itself refuses to look up."""
        status, answer = await call("POST", "/v1/weights", {"directory": directory, "version": 1})
        assert (status, answer["error"]["code"]) == (400, "bad_weights")

    async def test_a_body_larger_than_any_request_is_refused_unread(self, call: Call) -> None:
        """One client must not fill a server's memory."""
        size = 26 * (call.served.context + call.served.vocabulary) + (1 << 20)
        status, answer = await call("POST", "/v1/generate", b'{"model": "' + b"m" * size + b'"}')
        assert (status, answer["error"]["code"]) == (413, "malformed_request")

    async def test_bad_input_to_any_route_is_a_typed_4xx(self, call: Call) -> None:
        """Never a 500, never a hang, and the engine serves on."""
        _, document = await call("GET", "/openapi.json")
        served = call.served
        valid = {
            "/v1/generate": call.generate(),
            CHAT: call.chat(),
            CHAT_TOKENS: call.chat(tokens=[5, 6]),
            "/tokenize": {"model": served.model, "messages": call.chat()["messages"]},
            "/v1/weights": {"directory": "/no/such/directory", "version": 1},
        }
        for path in served.routes:
            route = Route(url=served.url, path=path, document=document, valid=valid[path])
            await asyncio.to_thread(check_route, route, examples=served.examples, seconds=SECONDS)
        status, _ = await call("POST", "/v1/generate", call.generate())
        assert status == 200
