"""The HTTP client: what it sends, what it refuses to believe, and what it tries again."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from types import SimpleNamespace
from typing import Any

import pytest
from fixtures.ports import free_port

from prl.client.http import HttpEngineClient, wished_pause
from prl.contracts import EngineClient
from prl.types import (
    ConfigError,
    EngineError,
    EngineUnavailableError,
    GenerateRequest,
    MalformedRequestError,
    MalformedResponseError,
    PromptTooLongError,
    RequestAbortedError,
    SamplingParams,
)

Connect = Callable[..., HttpEngineClient]
CHOICE: dict[str, Any] = {"token_ids": [7, 8], "logprobs": [-0.5, -1.5], "finish_reason": "stop"}
ANSWER: dict[str, Any] = {"choices": [CHOICE], "weight_version": 4}
REQUEST = GenerateRequest(model="m", prompt_token_ids=[1, 2])


def answer(**changes: Any) -> dict[str, Any]:
    return ANSWER | changes


def choice(**changes: Any) -> dict[str, Any]:
    return ANSWER | {"choices": [CHOICE | changes]}


async def test_a_minimal_request_carries_no_invented_limits(fake: Any, connect: Connect) -> None:
    """A fixed default for max_tokens would silently cut every rollout."""
    fake.replies = [(200, ANSWER)]
    response = await connect(fake.url).generate(REQUEST)
    path, sent, headers = fake.requests[0]
    key = sent.pop("request_id")
    assert path == "/v1/generate"
    assert sent == {"model": "m", "prompt_token_ids": [1, 2], "temperature": 1.0}
    assert len(key) == 32
    assert "X-data-parallel-rank" not in headers
    assert response.choices[0].token_ids == [7, 8]
    assert response.choices[0].logprobs == [-0.5, -1.5]
    assert (response.weight_version, response.prompt_token_ids) == (4, [1, 2])
    assert isinstance(connect(fake.url), EngineClient)


async def test_every_field_reaches_the_wire(fake: Any, connect: Connect) -> None:
    fake.replies = [(200, answer(choices=[CHOICE] * 3, prompt_logprobs=[None, -0.1]))]
    sampling = SamplingParams(
        max_tokens=9, min_tokens=2, temperature=0.5, top_p=0.9, top_k=5, n=3, seed=0, stop_token_ids=(2, 3)
    )
    request = GenerateRequest(
        model="m",
        prompt_token_ids=(1, 2),
        sampling=sampling,
        prompt_logprobs=True,
        priority=-1,
        cache_salt="v4",
        request_id="key",
        data_parallel_rank=0,
    )
    response = await connect(fake.url, headers={"traceparent": "00-ab"}).generate(request)
    _, sent, headers = fake.requests[0]
    assert sent == {
        "model": "m",
        "prompt_token_ids": [1, 2],
        "max_tokens": 9,
        "min_tokens": 2,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "n": 3,
        "seed": 0,
        "stop_token_ids": [2, 3],
        "prompt_logprobs": True,
        "priority": -1,
        "cache_salt": "v4",
        "request_id": "key",
    }
    assert headers["X-data-parallel-rank"] == "0"
    assert headers["traceparent"] == "00-ab"
    assert response.prompt_logprobs == [None, -0.1]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (choice(logprobs=[-0.5]), "2 token ids but 1 log-probabilities"),
        (choice(logprobs=None), "not a generate answer"),
        ({"choices": [{"token_ids": [7], "finish_reason": "stop"}], "weight_version": 1}, "missing required field"),
        ({"choices": [{"logprobs": [-1.0], "finish_reason": "stop"}], "weight_version": 1}, "missing required field"),
        ({"choices": [CHOICE]}, "weight_version"),
        (choice(token_ids=["7", "8"]), "not a generate answer"),
        (choice(token_ids=[7, -8]), "token_ids holds -8"),
        (choice(logprobs=[-0.5, -9999.0]), r"logprobs\[1\] is -9999.0"),
        (choice(logprobs=[0.7, -1.0]), r"logprobs\[0\] is 0.7"),
        (b'{"choices": [{"token_ids": [7], "logprobs": [NaN], "finish_reason": "stop"}]}', "not a generate answer"),
        (
            b'{"choices": [{"token_ids": [7], "logprobs": [-1e999], "finish_reason": "stop"}], "weight_version": 1}',
            "generate answer|no log-probability",
        ),
        (choice(finish_reason="nonsense"), "finish_reason"),
        (answer(choices=[]), "1 completions were asked for, 0 came"),
        (answer(choices=[CHOICE, CHOICE]), "2 came"),
        (answer(prompt_token_ids=[1, 3]), "other prompt ids"),
        (b"<html>", "not a generate answer"),
    ],
)
async def test_an_inconsistent_answer_is_an_error_never_filled_in(
    fake: Any, connect: Connect, body: Any, message: str
) -> None:
    fake.replies = [(200, body)]
    with pytest.raises(MalformedResponseError, match=message) as caught:
        await connect(fake.url).generate(REQUEST)
    assert fake.url in caught.value.where
    assert len(fake.requests) == 1


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (None, "none came"),
        ([None], "1 prompt_logprobs came for 2"),
        ([-0.1, -0.2], r"prompt_logprobs\[0\] is -0.1"),
        ([None, None], r"prompt_logprobs\[1\] is None"),
    ],
)
async def test_prompt_logprobs_are_checked(fake: Any, connect: Connect, values: Any, message: str) -> None:
    fake.replies = [(200, answer(prompt_logprobs=values))]
    request = GenerateRequest(model="m", prompt_token_ids=[1, 2], prompt_logprobs=True)
    with pytest.raises(MalformedResponseError, match=message):
        await connect(fake.url).generate(request)


async def test_an_aborted_completion_is_never_used(fake: Any, connect: Connect) -> None:
    fake.replies = [(200, choice(finish_reason="abort"))]
    with pytest.raises(RequestAbortedError, match="after 2 tokens"):
        await connect(fake.url).generate(REQUEST)


def error(code: str | None, message: str = "bad", **extra: Any) -> dict[str, Any]:
    return {"error": {"message": message, "code": code} | extra}


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (400, error("prompt_too_long"), PromptTooLongError),
        (400, error("context_length_exceeded"), PromptTooLongError),
        (400, error(None, "This model's maximum context length is 512 tokens"), PromptTooLongError),
        (400, error("malformed_request"), MalformedRequestError),
        (422, {"detail": [{"loc": ["body"]}]}, MalformedRequestError),
        (404, error("unknown_model"), EngineError),
        (500, b"oops", EngineError),
        (400, {"error": "flat text"}, MalformedRequestError),
    ],
)
async def test_errors_keep_their_type_across_http(
    fake: Any, connect: Connect, status: int, body: Any, kind: type[EngineError]
) -> None:
    fake.replies = [(status, body)]
    with pytest.raises(EngineError) as caught:
        await connect(fake.url).generate(REQUEST)
    assert type(caught.value) is kind
    assert caught.value.next_step
    assert len(fake.requests) == 1, "what cannot pass by itself is not tried again"


async def test_the_engines_own_three_parts_arrive(fake: Any, connect: Connect) -> None:
    fake.replies = [(404, error("unknown_model", "no model 'x'", where="this engine", next_step="send 'tiny'"))]
    with pytest.raises(EngineError) as caught:
        await connect(fake.url).generate(REQUEST)
    assert caught.value.what == "no model 'x' (HTTP 404)"
    assert caught.value.where == f"engine at {fake.url}, /v1/generate; this engine"
    assert caught.value.next_step == "send 'tiny'"


async def test_dropped_connections_and_503_are_tried_again_under_one_key(fake: Any, connect: Connect) -> None:
    """A second key would sample a second completion where the first answer was merely lost."""
    fake.replies = ["drop", (503, error("engine_unavailable")), (502, b""), (200, ANSWER)]
    response = await connect(fake.url).generate(REQUEST)
    assert response.choices[0].token_ids == [7, 8]
    assert len({sent["request_id"] for _, sent, _ in fake.requests}) == 1
    assert len(fake.requests) == 4


@pytest.mark.parametrize("status", [408, 429, 503, 529])
async def test_a_server_that_says_when_to_try_again_is_left_alone_until_then(
    fake: Any, connect: Connect, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    """A teacher's rate limit is asked again after a quarter of a second, six times, and every rollout breaks."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    fake.replies = [(status, b"", {"Retry-After": "7"}), (status, b""), (200, ANSWER)]
    monkeypatch.setattr("prl.client.http.asyncio", SimpleNamespace(**vars(asyncio) | {"sleep": sleep}))
    await connect(fake.url, ask_again=None).generate(REQUEST)
    assert slept[0] == 7.0
    assert slept[1] < 0.01, "what one answer asked for is no rule for the next"


@pytest.mark.parametrize(
    ("header", "least", "most"),
    [
        (None, 0, 0),
        ("", 0, 0),
        ("3", 3, 3),
        ("3600", 60, 60),
        ("-5", 0, 0),
        ("soon", 0, 0),
        ("nan", 0, 0),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0, 0),
        ("Wed, 99 Oct 2015 07:28:00 GMT", 0, 0),
        ("Wed, 21 Oct 2015 07:28:00 +99999999999999", 0, 0),
    ],
)
def test_a_wish_is_a_number_or_a_date_and_bounded(header: str | None, least: float, most: float) -> None:
    assert least <= wished_pause(header) <= most


def test_a_wish_may_be_a_date() -> None:
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=40), usegmt=True)
    assert 20 <= wished_pause(soon) <= 40


async def test_it_gives_up_with_the_address_and_the_next_step(fake: Any, connect: Connect, unused_url: str) -> None:
    with pytest.raises(EngineUnavailableError, match="3 tries") as caught:
        await connect(unused_url, retries=2).generate(REQUEST)
    assert unused_url in caught.value.where
    assert "prl serve" in caught.value.next_step
    fake.replies = [(503, error("engine_unavailable", "still loading"))] * 3
    with pytest.raises(EngineUnavailableError, match="still loading"):
        await connect(fake.url, retries=2).generate(REQUEST)
    assert len(fake.requests) == 3


@pytest.fixture
def unused_url() -> str:
    return f"http://127.0.0.1:{free_port()}"


async def test_the_timeout_of_a_request_is_not_that_of_a_load(connect: Connect) -> None:
    """A load waits for what runs and reads the weights: with a request's timeout it would never be done."""
    from .fake_engines import FakeServer, hang

    server = FakeServer()
    await server.start()
    try:
        client = connect(server.url, timeout=0.2, retries=0)
        server.load_delay = 0.5
        await client.load_weights("/w", 3)
        server.faults = [hang]
        with pytest.raises(EngineUnavailableError, match=r"within 0\.2 s"):
            await client.generate(GenerateRequest(model="m", prompt_token_ids=[1]))
    finally:
        await server.stop()


async def test_cancelling_closes_the_connection(connect: Connect) -> None:
    """An engine sees the abort only when the connection ends."""
    closed = asyncio.Event()
    arrived = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        arrived.set()
        while await reader.read(1024):
            pass
        closed.set()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        task = asyncio.create_task(connect(f"http://127.0.0.1:{port}").generate(REQUEST))
        await arrived.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(closed.wait(), 30)


async def test_health_models_and_weights(fake: Any, connect: Connect, unused_url: str) -> None:
    client = connect(fake.url)
    fake.replies = [
        (200, {}),
        (503, {}),
        (200, {"data": [{"id": "m", "max_model_len": 9}]}),
        (200, {"nothing": 1}),
        (200, {"status": "ok", "weight_version": 3}),
        (200, {"status": "ok", "weight_version": 2}),
        (400, error("bad_weights", "lacks 'x'")),
    ]
    assert await client.health() is True
    assert await client.health() is False
    assert await connect(unused_url).health() is False
    assert await client.models() == [{"id": "m", "max_model_len": 9}]
    with pytest.raises(MalformedResponseError, match="no models"):
        await client.models()
    await client.load_weights("/w", 3)
    assert fake.requests[-1][:2] == ("/v1/weights", {"directory": "/w", "version": 3})
    with pytest.raises(MalformedResponseError, match="serves 2"):
        await client.load_weights("/w", 3)
    with pytest.raises(EngineError, match="lacks 'x'"):
        await client.load_weights("/w", 3)


async def test_chat_passes_the_body_with_one_key(fake: Any, connect: Connect) -> None:
    fake.replies = [(503, {}), (200, {"choices": []}), (200, {"choices": []}), (200, [1])]
    client = connect(fake.url)
    assert await client.chat({"model": "m"}) == {"choices": []}
    first, second = fake.requests[0][1], fake.requests[1][1]
    assert first == second
    assert first["model"] == "m"
    await client.chat({"request_id": "mine"})
    assert fake.requests[2][1]["request_id"] == "mine"
    with pytest.raises(MalformedResponseError, match="not a JSON object"):
        await client.chat({})


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://x", "http://", ""])
def test_an_address_that_is_none_is_refused_at_once(url: str) -> None:
    with pytest.raises(ConfigError, match="no engine address"):
        HttpEngineClient(url)


def test_without_aiohttp_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    with pytest.raises(ConfigError) as caught:
        HttpEngineClient("http://127.0.0.1:1")
    assert 'pip install "prl-core[client]"' in str(caught.value)


def test_importing_the_client_room_imports_no_aiohttp() -> None:
    code = "import prl.client, sys; print('aiohttp' in sys.modules, 'torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False False"
