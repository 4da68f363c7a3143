"""The routes over a stand-in for vLLM's engine: what no CPU server can produce, and what must never be passed on."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

from prl_engine_vllm.server.adapters import AdapterService
from prl_engine_vllm.server.chat import ChatService
from prl_engine_vllm.server.generate import GenerateService
from prl_engine_vllm.server.limits import Limits
from prl_engine_vllm.server.routes import Services, attach
from prl_engine_vllm.server.schemas import InfoAnswer
from prl_engine_vllm.server.state import WeightState
from prl_engine_vllm.server.weights import WeightService


class EngineDeadError(Exception):
    pass


class FakeVllm:
    """Stands in for the names that the front end takes from vLLM."""

    rejects = (ValueError,)
    dies = (EngineDeadError,)
    fails = (RuntimeError,)

    def sampling(self, fields: Mapping[str, Any]) -> Any:
        return dict(fields)

    def prompt(self, ids: list[int], cache_salt: str | None) -> Any:
        return {"ids": ids, "salt": cache_salt}

    def trace(self, headers: Mapping[str, str]) -> Mapping[str, str] | None:
        return {"traceparent": headers["traceparent"]} if "traceparent" in headers else None


def logprob(value: float) -> Any:
    return SimpleNamespace(logprob=value)


def completion(index: int = 0, **changes: Any) -> Any:
    """Return what vLLM says of one finished completion of the ids 7, 8."""
    span = SimpleNamespace(version="default", start=0, end=2)
    fields = {
        "index": index,
        "token_ids": [7, 8],
        # another token stands first: entries are found by id
        "logprobs": [{9: logprob(-0.1), 7: logprob(-1.5)}, {8: logprob(-2.5)}],
        "finish_reason": "length",
        "routed_experts": None,
        "weight_versions": [span],
    }
    return SimpleNamespace(**fields | changes)


class FakeEngine:
    """An engine client that answers what a test says, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.outputs: list[Any] = [completion()]
        self.prompt_logprobs: Any = None
        self.failure: Exception | None = None
        self.seconds = 0.0
        self.aborted = 0
        self.errored = False
        self.label = "default"

    async def generate(self, prompt: Any, params: Any, request_id: str, **options: Any) -> AsyncIterator[Any]:
        self.asked.append({"prompt": prompt, "params": params, "id": request_id, **options})
        try:
            await asyncio.sleep(self.seconds)
        except asyncio.CancelledError:
            self.aborted += 1
            raise
        if self.failure is not None:
            raise self.failure
        yield SimpleNamespace(outputs=self.outputs, prompt_logprobs=self.prompt_logprobs)

    async def get_weight_version(self) -> str:
        return self.label


class ChatRequest(BaseModel):
    """Stands in for vLLM's model of a chat body."""

    messages: list[dict[str, Any]]
    model: str | None = None
    use_beam_search: bool = False
    prompt_logprobs: int | None = None
    stop_token_ids: list[int] | None = None
    stream: bool | None = False


class Models:
    """Stands in for vLLM's table of models."""

    base_model_paths = (SimpleNamespace(name="tiny"),)

    def __init__(self) -> None:
        self.lora_requests: dict[str, Any] = {"adapter": SimpleNamespace(lora_name="adapter")}

    def is_base_model(self, name: str) -> bool:
        return name == "tiny"

    async def resolve_lora(self, name: str) -> Any:
        return SimpleNamespace(error=SimpleNamespace(message="no such adapter"))


def make_app(engine: FakeEngine, limits: Limits) -> FastAPI:
    app = FastAPI()
    attach(app, {"type": "object", "properties": {}, "required": ["messages"]})
    state, vllm, models = WeightState(), FakeVllm(), Models()
    weights = WeightService(engine, state, lambda: None, tied=True)
    info = InfoAnswer(
        engine="vllm",
        plugin_version="0",
        vllm_version="0",
        logprobs_mode="raw",
        lora=False,
        model="tiny",
        instance=None,
    )
    app.state.prl = Services(
        engine=engine,
        models=models,
        limits=limits,
        state=state,
        generate=GenerateService(engine, models, vllm, limits, state),
        chat=ChatService(None, ChatRequest, vllm, limits, state),
        weights=weights,
        adapters=AdapterService(models, weights, rank=None, servers=1),
        info=info,
    )
    return app


class Running:
    """The app behind real HTTP: only a real connection can be closed half way."""

    def __init__(self) -> None:
        self.engine = FakeEngine()
        self.app = make_app(self.engine, Limits(vocabulary=100, context=20, ranks=2))
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._server = uvicorn.Server(uvicorn.Config(self.app, log_level="error", access_log=False))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]})
        self._thread.start()
        deadline = time.monotonic() + 20
        while not self._server.started and time.monotonic() < deadline:
            time.sleep(0.01)

    def use(self, **changes: Any) -> None:
        """Change the limits of the routes."""
        services = self.app.state.prl
        limits = dataclasses.replace(services.limits, **changes)
        generate = GenerateService(self.engine, services.models, FakeVllm(), limits, services.state)
        self.app.state.prl = dataclasses.replace(services, limits=limits, generate=generate)

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()


@pytest.fixture
def server() -> Iterator[Running]:
    running = Running()
    yield running
    running.close()


@pytest.fixture
def generate(server: Running, call: Any) -> Callable[..., Any]:
    """Send a generate body; return (status, answer)."""

    async def send(headers: dict[str, str] | None = None, **changes: Any) -> tuple[int, Any]:
        body = {"model": "tiny", "prompt_token_ids": [1, 2, 3]} | changes
        found: tuple[int, Any] = await call("POST", f"{server.url}/v1/generate", body, headers)
        return found

    return send


async def test_every_field_reaches_the_engine(server: Running, generate: Any) -> None:
    status, _ = await generate(
        {"X-data-parallel-rank": "1", "traceparent": "00-a-b-01"},
        model="adapter",
        max_tokens=5,
        min_tokens=2,
        temperature=0.7,
        top_p=0.9,
        top_k=4,
        min_p=0.1,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        repetition_penalty=1.1,
        seed=9,
        stop_token_ids=[7],
        priority=-3,
        cache_salt="step 4",
    )
    assert status == 200
    [asked] = server.engine.asked
    assert asked.pop("id").startswith("prl-")
    assert asked.pop("lora_request").lora_name == "adapter"
    assert asked == {
        "prompt": {"ids": [1, 2, 3], "salt": "step 4"},
        "params": {
            "n": 1, "max_tokens": 5, "min_tokens": 2, "temperature": 0.7, "top_p": 0.9, "top_k": 4, "min_p": 0.1,
            "presence_penalty": 0.5, "frequency_penalty": -0.5, "repetition_penalty": 1.1, "seed": 9,
            "stop_token_ids": [7], "ignore_eos": True, "logprobs": 0, "prompt_logprobs": None,
        },
        "trace_headers": {"traceparent": "00-a-b-01"},
        "priority": -3,
        "data_parallel_rank": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "field", "value"),
    [
        ({}, "max_tokens", 17),
        ({"max_tokens": 10**30}, "max_tokens", 17),
        ({"min_tokens": 10**30}, "min_tokens", 17),
        ({"top_k": -1}, "top_k", 0),
        ({"top_k": 2**60}, "top_k", 100),
        # vLLM takes -1 for no seed, and adds the choice's index to the seed
        ({"seed": -1}, "seed", 2**62 - 1),
        ({"seed": 2**63 - 1}, "seed", 2**62 - 1),
        ({"temperature": 0, "n": 3}, "n", 1),
        ({"prompt_logprobs": True}, "prompt_logprobs", 0),
    ],
)
async def test_values_that_vllm_reads_differently(
    server: Running, generate: Any, changes: dict[str, Any], field: str, value: int
) -> None:
    server.engine.prompt_logprobs = [None, {2: logprob(-1)}, {3: logprob(-1)}]
    await generate(**changes)
    assert server.engine.asked[0]["params"][field] == value


async def test_the_answer_names_each_tokens_own_logprob(server: Running, generate: Any) -> None:
    server.engine.outputs = [completion(1, finish_reason="stop"), completion(0)]
    server.engine.prompt_logprobs = [None, {9: logprob(-0.2), 2: logprob(-0.5)}, {3: logprob(-0.75)}]
    status, answer = await generate(n=2, prompt_logprobs=True, request_id="a")
    assert status == 200
    assert answer == {
        "choices": [
            {"token_ids": [7, 8], "logprobs": [-1.5, -2.5], "finish_reason": "length", "routed_experts": None},
            {"token_ids": [7, 8], "logprobs": [-1.5, -2.5], "finish_reason": "stop", "routed_experts": None},
        ],
        "prompt_token_ids": [1, 2, 3],
        "prompt_logprobs": [None, -0.5, -0.75],
        "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7},
        "weight_version": -1,
        "request_id": "a",
    }


async def test_greedy_choices_are_the_one_greedy_completion(generate: Any) -> None:
    _, answer = await generate(n=3, temperature=0)
    assert [choice["token_ids"] for choice in answer["choices"]] == [[7, 8]] * 3
    assert answer["usage"]["completion_tokens"] == 6


async def test_routed_experts_are_rows_that_a_trainer_can_align(server: Running, generate: Any) -> None:
    """[tokens - 1, layers, experts per token], prompt included, as the trainer's trajectories take it."""
    import numpy as np

    from prl.trajectory import align_routed_experts

    rows = np.arange(4 * 2 * 2, dtype=np.uint8).reshape(4, 2, 2)
    server.engine.outputs = [completion(routed_experts=rows)]
    _, answer = await generate()
    found = answer["choices"][0]["routed_experts"]
    assert found == rows.tolist()
    aligned = align_routed_experts([(5, 0, found)])
    assert aligned is not None
    assert len(aligned) == 5


async def test_a_large_routing_table_does_not_hold_up_the_server(server: Running, generate: Any) -> None:
    """2,048 tokens of 48 layers: an encoding in pure Python would block every other request."""
    import numpy as np

    server.engine.outputs = [completion(routed_experts=np.zeros((2048, 48, 8), dtype=np.int16))]
    started = time.process_time()
    status, answer = await generate()
    assert status == 200
    assert len(answer["choices"][0]["routed_experts"]) == 2048
    assert time.process_time() - started < 2.0


@pytest.mark.parametrize(
    ("changes", "status", "code"),
    [
        ({"logprobs": [{7: logprob(-1.0)}]}, 500, "engine_failed"),
        ({"logprobs": None}, 500, "engine_failed"),
        ({"logprobs": [{7: logprob(-1.0)}, {9: logprob(-1.0)}]}, 500, "not_finite"),
        ({"logprobs": [{7: logprob(-1.0)}, {8: logprob(float("-inf"))}]}, 500, "not_finite"),
        ({"logprobs": [{7: logprob(-1.0)}, {8: logprob(float("nan"))}]}, 500, "not_finite"),
        ({"finish_reason": "abort"}, 503, "aborted"),
        ({"finish_reason": "error"}, 500, "engine_failed"),
        ({"finish_reason": None}, 500, "engine_failed"),
        ({"weight_versions": None}, 500, "engine_failed"),
        ({"weight_versions": [SimpleNamespace(version="undefined")]}, 500, "engine_failed"),
        ({"weight_versions": [SimpleNamespace(version="3"), SimpleNamespace(version="4")]}, 503, "aborted"),
    ],
)
async def test_what_cannot_be_trusted_is_an_error_never_a_filled_in_value(
    server: Running, generate: Any, changes: dict[str, Any], status: int, code: str
) -> None:
    server.engine.outputs = [completion(**changes)]
    got, answer = await generate()
    assert (got, answer["error"]["code"]) == (status, code)
    assert all(answer["error"][part] for part in ("message", "where", "next_step"))


async def test_an_answer_names_the_weights_that_sampled_it(server: Running, generate: Any) -> None:
    server.engine.outputs = [completion(weight_versions=[SimpleNamespace(version="12")])]
    assert (await generate())[1]["weight_version"] == 12


@pytest.mark.parametrize(
    ("failure", "status", "code"),
    [
        (ValueError("top_p must be"), 400, "malformed_request"),
        (EngineDeadError("gone"), 503, "engine_unavailable"),
        (RuntimeError("broken"), 500, "engine_failed"),
    ],
)
async def test_what_vllm_raises_is_typed(
    server: Running, generate: Any, failure: Exception, status: int, code: str
) -> None:
    server.engine.failure = failure
    got, answer = await generate()
    assert (got, answer["error"]["code"]) == (status, code)


@pytest.mark.parametrize(
    ("changes", "status", "code"),
    [
        ({"prompt_token_ids": [100]}, 400, "malformed_request"),
        ({"prompt_token_ids": [1] * 20}, 400, "prompt_too_long"),
        ({"prompt_token_ids": []}, 400, "malformed_request"),
        ({"stop_token_ids": [100]}, 400, "malformed_request"),
        ({"model": "other"}, 404, "unknown_model"),
        ({"cache_salt": ""}, 422, "malformed_request"),
        ({"prompt_token_ids": [True]}, 422, "malformed_request"),
    ],
)
async def test_a_request_that_would_harm_the_engine_never_reaches_it(
    server: Running, generate: Any, changes: dict[str, Any], status: int, code: str
) -> None:
    got, answer = await generate(**changes)
    assert (got, answer["error"]["code"]) == (status, code)
    assert not server.engine.asked


async def test_prompt_logprobs_are_refused_where_they_would_end_the_server(server: Running, generate: Any) -> None:
    """vLLM's CPU build with adapters dies of them."""
    server.use(scores_prompts=False)
    status, answer = await generate(prompt_logprobs=True)
    assert (status, answer["error"]["code"]) == (400, "malformed_request")
    assert not server.engine.asked


async def test_many_wrong_ids_are_told_at_once_and_briefly(server: Running, generate: Any) -> None:
    server.use(context=400_000)
    started = time.monotonic()
    status, answer = await generate(prompt_token_ids=["x"] * 300_000)
    assert status == 422
    assert time.monotonic() - started < 3
    assert len(json.dumps(answer)) < 1000


async def test_a_body_beyond_any_prompt_is_refused_before_it_is_read(server: Running, call: Any) -> None:
    status, answer = await call("POST", f"{server.url}/v1/generate", b"[" + b"1," * 1_000_000 + b"1]")
    assert (status, answer["error"]["code"]) == (413, "malformed_request")


async def test_a_client_that_goes_away_aborts_its_request(server: Running) -> None:
    server.engine.seconds = 30
    async with aiohttp.ClientSession() as session:
        body = {"model": "tiny", "prompt_token_ids": [1]}
        post = asyncio.ensure_future(session.post(f"{server.url}/v1/generate", json=body))
        await _until(lambda: len(server.engine.asked) == 1)
        post.cancel()
        await asyncio.gather(post, return_exceptions=True)
        await _until(lambda: server.engine.aborted == 1)


async def test_a_retry_waits_for_the_first_try_and_gets_its_answer(server: Running, generate: Any) -> None:
    server.engine.seconds = 0.2
    first, second = await asyncio.gather(generate(request_id="x"), generate(request_id="x"))
    third = await generate(request_id="x")
    assert first == second == third
    assert len(server.engine.asked) == 1
    status, answer = await generate(request_id="x", seed=5)
    assert (status, answer["error"]["where"]) == (400, "request_id")


async def test_a_failed_try_may_be_tried_again(server: Running, generate: Any) -> None:
    server.engine.failure = RuntimeError("broken")
    assert (await generate(request_id="y"))[0] == 500
    server.engine.failure = None
    assert (await generate(request_id="y"))[0] == 200


async def test_a_retry_outlives_the_first_connection(server: Running, generate: Any) -> None:
    """A proxy cuts the first try: the second must get the same sample, not a new one."""
    server.engine.seconds = 0.5
    async with aiohttp.ClientSession() as session:
        body = {"model": "tiny", "prompt_token_ids": [1, 2, 3], "request_id": "z"}
        post = asyncio.ensure_future(session.post(f"{server.url}/v1/generate", json=body))
        await _until(lambda: len(server.engine.asked) == 1)
        again = asyncio.ensure_future(generate(request_id="z"))
        await asyncio.sleep(0.1)
        post.cancel()
        await asyncio.gather(post, return_exceptions=True)
        assert (await again)[0] == 200
    assert len(server.engine.asked) == 1
    assert server.engine.aborted == 0


async def test_a_dead_engine_is_told_on_every_route(server: Running, call: Any) -> None:
    server.engine.errored = True
    for method, path, body in (
        ("GET", "/health", None),
        ("GET", "/v1/models", None),
        ("POST", "/v1/generate", {"model": "tiny", "prompt_token_ids": [1]}),
        ("POST", "/v1/weights", {"directory": "d", "version": 1}),
    ):
        status, answer = await call(method, server.url + path, body)
        assert (status, answer["error"]["code"]) == (503, "engine_unavailable"), path


async def test_a_server_without_chat_says_so(server: Running, call: Any) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "a"}]}
    status, answer = await call("POST", f"{server.url}/v1/chat/completions", body)
    assert (status, answer["error"]["code"]) == (503, "engine_unavailable")
    status, answer = await call("POST", f"{server.url}/v1/chat/completions/tokens", body)
    assert (status, [field["field"] for field in answer["error"]["fields"]]) == (422, ["tokens"])


async def test_adapters_are_refused_by_a_server_without_them(server: Running, call: Any) -> None:
    status, answer = await call("POST", f"{server.url}/v1/adapters", {"name": "a", "directory": "/d"})
    assert (status, answer["error"]["code"]) == (400, "bad_adapter")
    assert "lora = true" in answer["error"]["next_step"]


async def test_the_document_describes_the_answers(server: Running, generate: Any, call: Any) -> None:
    _, document = await call("GET", f"{server.url}/openapi.json")
    _, answer = await generate()
    assert set(document["components"]["schemas"]["GenerateAnswer"]["properties"]) == set(answer)
    body = document["paths"]["/v1/generate"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body["additionalProperties"] is False
    assert set(body["required"]) == {"model", "prompt_token_ids"}
    tokens = document["paths"]["/v1/chat/completions/tokens"]["post"]["requestBody"]
    assert set(tokens["content"]["application/json"]["schema"]["required"]) == {"messages", "tokens"}


async def _until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition never came true"
        await asyncio.sleep(0.005)
