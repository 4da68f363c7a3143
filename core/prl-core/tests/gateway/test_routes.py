"""Requests are refused in the shape and with the status that OpenAI clients understand."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prl.gateway.body import read_body
from prl.gateway.canonical import history_keys
from prl.gateway.faults import GatewayFault
from prl.types import (
    EngineUnreachableError,
    MalformedRequestError,
    MalformedResponseError,
    PrlError,
    PromptTooLongError,
    RenderError,
    RequestAbortedError,
)

from .conftest import OPERATOR, Served

ASKED = [{"role": "user", "content": "Hi"}]


async def test_a_prompt_over_the_context_is_not_tried_again(served: Served) -> None:
    """SDKs retry 5xx and 429; agents look for this code to end or compact the conversation."""
    served.engine.lines = [PromptTooLongError("too long", next_step="shorten it")]
    answer = await served.chat(ASKED)
    assert answer.status == 400
    assert answer.error == {
        "message": "too long. Next: shorten it",
        "type": "invalid_request_error",
        "param": "messages",
        "code": "context_length_exceeded",
    }
    assert answer.headers["x-should-retry"] == "false"


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (EngineUnreachableError("gone"), 503, "engine_unavailable"),
        (RequestAbortedError("aborted"), 503, "engine_unavailable"),
        (MalformedResponseError("garbage"), 502, "engine_error"),
        (MalformedRequestError("id 999"), 400, "engine_refused"),
    ],
)
async def test_faults_of_the_engine(served: Served, error: PrlError, status: int, code: str) -> None:
    served.engine.lines = [error]
    answer = await served.chat(ASKED)
    assert (answer.status, answer.error["code"]) == (status, code)
    assert ("Retry-After" in answer.headers) is (status == 503)
    assert served.sessions() == []
    assert (await served.chat(ASKED)).status == 200


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("stop", ""),
        ("stop", ["a", ""]),
        ("stop", 5),
        ("stop", ["x"] * 17),
        ("response_format", {"type": "json_object"}),
        ("response_format", {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}),
        ("parallel_tool_calls", False),
        ("chat_template_kwargs", {"enable_thinking": False}),
        ("stop_token_ids", [3]),
        ("tool_choice", "required"),
        ("tool_choice", {"type": "function", "function": {"name": "f"}}),
        ("frequency_penalty", 0.5),
        ("logit_bias", {"5": 10}),
        ("top_logprobs", 3),
        ("functions", [{"name": "f"}]),
        ("reasoning_effort", "high"),
        ("temperature", "hot"),
        ("temperature", 3),
        ("max_tokens", 0),
        ("n", 0),
        ("n", 17),
        ("messages", []),
        ("messages", "Hi"),
        ("no_such_field", 1),
    ],
)
async def test_what_has_no_effect_here_is_refused_by_name(served: Served, field: str, value: Any) -> None:
    """A field that is dropped silently trains on something else than the agent asked for."""
    answer = await served.chat(**{"messages": ASKED, field: value})
    assert answer.status == 400
    assert str(answer.error["param"]).startswith(field)
    assert field in answer.error["message"]
    assert served.engine.requests == []


@pytest.mark.parametrize(
    ("field", "value", "instead"),
    [
        ("top_logprobs", 3, "top_logprobs is not supported with this value. Next: leave it out; logprobs = true gives"),
        ("response_format", {"type": "json_object"}, "ask for the format in a message"),
        ("tool_choice", "required", 'send "auto" or "none"'),
        ("reasoning_effort", "high", "reasoning_effort is not supported. Next: leave it out; whoever runs the gateway"),
    ],
)
async def test_a_refusal_says_what_to_do_instead(served: Served, field: str, value: Any, instead: str) -> None:
    """Agents that are refused are mended by people, who look for the way round."""
    assert instead in (await served.chat(ASKED, **{field: value})).error["message"]


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}}, "messages[1].function_call"),
        ({"role": "function", "name": "f", "content": "5"}, "messages[1].role"),
        ({"role": "assistant", "content": None, "refusal": "I will not."}, "messages[1].refusal"),
        ({"role": "assistant", "audio": {"id": "a"}}, "messages[1].audio"),
    ],
)
async def test_what_no_renderer_writes_is_refused_by_name(served: Served, message: Any, param: str) -> None:
    """Dropped, the model would be asked about a conversation in which this was never said."""
    answer = await served.chat([*ASKED, message])
    assert (answer.status, answer.error["param"]) == (400, param)
    assert "Next: send" in answer.error["message"]


async def test_half_a_surrogate_pair_is_replaced(served: Served) -> None:
    """Programs cut the output of tools anywhere, also inside an emoji, and JSON.stringify sends what is left."""
    content = rb"\ud83e\udd8a \ud83e \\ud83e \udd8a"
    raw = b'{"model": "small", "messages": [{"role": "user", "content": "' + content + b'"}]}'
    assert (await served.send("POST", "/chat/completions", raw)).status == 200
    assert served.engine.prompt().startswith("<s>user\n🦊 � \\ud83e �</s>")


async def test_what_clients_send_by_routine_is_taken(served: Served) -> None:
    answer = await served.chat(
        ASKED,
        user="me",
        metadata={"a": "b"},
        store=False,
        parallel_tool_calls=True,
        service_tier="auto",
        frequency_penalty=0,
        presence_penalty=0.0,
        stop=None,
        logit_bias={},
        response_format={"type": "text"},
        tool_choice="auto",
        stream_options=None,
        n=1,
        max_completion_tokens=5,
        seed=7,
        top_p=0.5,
    )
    assert answer.status == 200
    sampling = served.engine.requests[0].sampling
    assert (sampling.max_tokens, sampling.seed, sampling.top_p, sampling.temperature) == (5, 7, 0.5, 1.0)


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([{"content": "no role"}], "messages"),
        ([{"role": "user", "content": 5}], "messages"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}], "messages"),
        ([{"role": "assistant", "tool_calls": [{"id": "a"}]}], "messages"),
        ([7], "messages[0]"),
    ],
)
async def test_a_message_that_cannot_be_rendered_is_a_400(served: Served, messages: Any, param: str) -> None:
    answer = await served.chat(messages)
    assert (answer.status, answer.error["param"]) == (400, param)


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"null", b'{"model": "\\ud800"}', b"\xff", b"[" * 100_000])
async def test_a_body_that_is_no_object_is_a_400(served: Served, raw: bytes) -> None:
    answer = await served.send("POST", "/chat/completions", raw)
    assert answer.status == 400
    assert answer.error["type"] == "invalid_request_error"


async def test_arguments_nested_without_end_are_a_400(served: Served) -> None:
    """They are a string in the body, and read a second time."""
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "[" * 100_000}}
    answer = await served.chat([*ASKED, {"role": "assistant", "tool_calls": [call]}])
    assert answer.status == 400


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = ("role", "content", "tool_calls", "tool_call_id", "name", "reasoning_content")
MESSAGES = st.lists(st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=4), max_size=3)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.dictionaries(
        st.sampled_from(("model", "messages", "tools", "stream_options", "temperature", "stop", "n", "x")), JSON
    ),
    MESSAGES,
)
def test_any_body_is_read_or_refused(body: dict[str, Any], messages: list[Any]) -> None:
    """Anything else than a `PrlError` would be a 500 that names nothing, and that SDKs send again and again."""
    for one in (body, {"model": "small", "messages": messages}):
        try:
            request = read_body(json.dumps(one).encode(), max_messages=9, max_choices=9)
            keys = history_keys(request.messages)
            assert len(keys) == len(request.messages)
        except (GatewayFault, RenderError):
            continue


async def test_limits(serve: Callable[..., Any]) -> None:
    served: Served = await serve(max_request_bytes=2000, max_messages=3)
    large = await served.chat([{"role": "user", "content": "x" * 3000}])
    assert (large.status, large.error["code"]) == (413, "request_too_large")
    assert large.headers["x-should-retry"] == "false"
    many = await served.chat(ASKED * 4)
    assert (many.status, many.error["param"]) == (400, "messages")
    assert (await served.chat(ASKED)).status == 200


async def test_models_and_health(served: Served) -> None:
    cards = (await served.send("GET", "/models")).body["data"]
    assert [(card["id"], card["max_model_len"]) for card in cards] == [("small", 4096)]
    assert (await served.send("GET", "/models/small")).body["id"] == "small"
    root = served.url.removesuffix("/v1")
    async with served.http.get(f"{root}/health") as answer:
        assert answer.status == 200
    served.engine.healthy = False
    async with served.http.get(f"{root}/health") as answer:
        assert answer.status == 503


async def test_another_model_is_not_found(served: Served) -> None:
    answer = await served.chat(ASKED, model="gpt-4o")
    assert (answer.status, answer.error["code"]) == (404, "model_not_found")
    assert "'small'" in answer.error["message"]
    assert (await served.send("GET", "/models/gpt-4o")).status == 404


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (b"", b""),
        (b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthor", b""),
        (b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer client-key\r\n"
         b"Content-Length: 99\r\n\r\n{", b"408 Request Timeout"),
    ],
    ids=["nothing", "head", "body"],
)  # fmt: skip
async def test_who_sends_slowly_does_not_keep_a_connection(serve: Callable[..., Any], sent: bytes, told: bytes) -> None:
    """A thousand connections that dribble would leave agents none."""
    served: Served = await serve(read_seconds=0.1)
    url = urlsplit(served.url)
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    writer.write(sent)
    async with asyncio.timeout(20):
        first = await reader.readline()
        assert told in first
        if not told:
            assert first == b"", "the connection is closed"
    writer.close()


async def test_unknown_routes_answer_in_the_same_shape(served: Served) -> None:
    assert (await served.send("GET", "/chat/completions")).status == 405
    for path in ("/completions", "/responses", "/embeddings", "/messages", "/v1/chat/completions"):
        answer = await served.send("POST", path, {"model": "small"})
        assert (answer.status, answer.error["code"]) == (404, "unknown_route")
        assert path in answer.error["message"]
        assert "POST /v1/chat/completions" in answer.error["message"]


@pytest.mark.parametrize("key", [None, "", "strange", "client-ke", "client-key2", OPERATOR, "strange:client-key"])
@pytest.mark.parametrize("route", [("POST", "/chat/completions"), ("GET", "/models"), ("GET", "/models/small")])
async def test_a_wrong_key_opens_nothing(served: Served, key: str | None, route: tuple[str, str]) -> None:
    answer = await served.send(*route, {"model": "small", "messages": ASKED}, key=key)
    assert (answer.status, answer.error["code"]) == (401, "invalid_api_key")
    assert not key or key not in json.dumps(answer.body)
    assert served.engine.requests == []


@pytest.mark.parametrize("key", [None, "wrong", "client-key"])
async def test_rollouts_are_the_operators_alone(served: Served, key: str | None) -> None:
    await served.chat(ASKED)
    path = f"/rollouts/{served.session.id}"
    for method, where in (("GET", "/rollouts"), ("DELETE", "/rollouts"), ("GET", path), ("DELETE", path)):
        assert (await served.send(method, where, key=key)).status == 401
    assert not served.session.is_closed


async def test_without_an_operators_key_nobody_is_the_operator(serve: Callable[..., Any]) -> None:
    served: Served = await serve(operator_key=None)
    assert (await served.send("GET", "/rollouts", key="")).status == 401


async def test_log_probabilities_where_they_are_asked_for(served: Served) -> None:
    served.engine.lines = ["Hé", "ok"]
    answer = await served.chat(ASKED, logprobs=True)
    rows = answer.body["choices"][0]["logprobs"]["content"]
    assert [row["token"] for row in rows] == ["H", "token_id:195", "token_id:169", "</s>"]
    assert [row["logprob"] for row in rows] == [-0.25 - n / 1024 for n in range(4)]
    assert rows[0]["bytes"] == [72]
    assert rows[1]["bytes"] is None
    assert (await served.chat(ASKED)).body["choices"][0]["logprobs"] is None
