"""A request that is sent again is one turn; a request that is meant twice is two."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from fixtures.ports import free_port

from prl.cli.gateway import connect
from prl.client import EnginePool
from prl.gateway import Gateway, GatewaySettings
from prl.gateway.answer import Completion
from prl.types import EngineUnreachableError

from .conftest import Served
from .small import TOKENIZER, TalkingEngine, small_renderer

ASKED = [{"role": "user", "content": "Hi"}]
AGAIN = {"X-Stainless-Retry-Count": "1"}
FIRST = {"X-Stainless-Retry-Count": "0"}
NAMED = {"Idempotency-Key": "abc"}


def hold(served: Served) -> asyncio.Event:
    served.engine.gate = asyncio.Event()
    return served.engine.gate


@pytest.mark.parametrize(("first", "second"), [(FIRST, AGAIN), (NAMED, NAMED)], ids=["count", "key"])
async def test_a_retry_joins_the_request_in_flight(
    served: Served, first: dict[str, str], second: dict[str, str]
) -> None:
    gate = hold(served)
    tries = [asyncio.create_task(served.chat(ASKED, headers=headers)) for headers in (first, second)]
    await served.until(lambda: len(served.engine.requests) == 1)
    await asyncio.sleep(0.25)
    gate.set()
    answers = await asyncio.gather(*tries)
    assert answers[0].body == answers[1].body
    assert len(served.engine.requests) == 1
    assert len(served.session.turns) == 1


@pytest.mark.parametrize(("first", "second"), [(FIRST, AGAIN), (NAMED, NAMED)], ids=["count", "key"])
async def test_a_retry_gets_the_finished_answer_again(
    served: Served, first: dict[str, str], second: dict[str, str]
) -> None:
    """The answer was lost on its way: a second sample of the turn would be a branch that the agent never took."""
    served.engine.lines = ["one", "two"]
    answers = [await served.chat(ASKED, headers=headers) for headers in (first, second)]
    assert answers[0].body == answers[1].body
    assert [turn.message["content"] for turn in served.session.turns] == ["one"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_goes_away_under_its_answer_is_no_error_of_the_gateway(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    """A week of traffic would bury the log in tracebacks. Its retry gets the same answer."""
    served.engine.lines = ["one", "two"]
    head = Completion.head

    def hang_up(completion: Completion, kind: str) -> dict[str, Any]:
        for connection in served.gateway._runner.server.connections:
            connection.transport.abort()
        return head(completion, kind)

    with monkeypatch.context() as patched:
        patched.setattr(Completion, "head", hang_up)
        with pytest.raises(aiohttp.ClientError):
            await served.chat(ASKED, stream=stream)
    assert "one" in str((await served.chat(ASKED, stream=stream)).body)
    assert len(served.engine.requests) == 1
    assert caplog.text == ""


async def test_the_same_body_twice_is_two_samples(served: Served) -> None:
    """Parallel samples of one prompt are what a group of rollouts is made of."""
    served.engine.lines = ["one", "two", "three"]
    contents = [(await served.chat(ASKED, headers=FIRST)).message["content"] for _ in range(2)]
    contents.append((await served.chat(ASKED)).message["content"])
    assert contents == ["one", "two", "three"]


async def test_a_retry_after_a_failure_samples(served: Served) -> None:
    served.engine.lines = [EngineUnreachableError("gone"), "two"]
    assert (await served.chat(ASKED, headers=FIRST)).status == 503
    assert (await served.chat(ASKED, headers=AGAIN)).message["content"] == "two"
    assert len(served.session.turns) == 1


async def test_a_key_used_for_another_body_is_refused(served: Served) -> None:
    await served.chat(ASKED, headers=NAMED)
    answer = await served.chat([{"role": "user", "content": "Bye"}], headers=NAMED)
    assert (answer.status, answer.error["code"]) == (400, "idempotency_key_reused")


async def test_one_sessions_retry_is_not_anothers(served: Served) -> None:
    """The same task in two sessions has the same body; answering one with the other's turn would leak it."""
    served.engine.lines = ["one", "two"]
    answers = [await served.chat(ASKED, key=f"client-key:{name}", headers=AGAIN) for name in ("a", "b")]
    assert [answer.message["content"] for answer in answers] == ["one", "two"]


async def abandon(served: Served, **headers: str) -> None:
    """Send a request and go away before its answer."""
    before = len(served.engine.requests)
    task = asyncio.create_task(served.chat(ASKED, headers=headers))
    await served.until(lambda: len(served.engine.requests) > before)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError, aiohttp.ClientError):
        await task


async def test_a_client_that_goes_away_aborts_the_engines_request(served: Served) -> None:
    hold(served)
    await abandon(served)
    await served.until(lambda: served.engine.aborted == 1)
    assert all(session.turns == () for session in served.sessions())


async def test_a_client_that_goes_away_leaves_the_request_to_its_retry(served: Served) -> None:
    gate = hold(served)
    other = asyncio.create_task(served.chat(ASKED, headers=NAMED))
    await served.until(lambda: len(served.engine.requests) == 1)
    first = asyncio.create_task(served.chat(ASKED, headers=NAMED))
    await asyncio.sleep(0.25)
    other.cancel()
    await asyncio.sleep(0.05)
    gate.set()
    assert (await first).status == 200
    assert (len(served.engine.requests), served.engine.aborted) == (1, 0)


async def test_an_answer_that_never_went_out_is_given_to_the_same_body(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client without any retry header lost its answer: it gets the turn that was recorded, not one more."""
    served.engine.lines = ["one", "two"]

    async def lose(*_: Any) -> None:
        raise ConnectionResetError("the client is gone")

    with monkeypatch.context() as patched:
        patched.setattr(web.Response, "write_eof", lose)
        with pytest.raises(aiohttp.ClientError):
            await served.chat(ASKED)
    assert (await served.chat(ASKED)).message["content"] == "one"
    assert (await served.chat(ASKED)).message["content"] == "two"


async def test_an_answer_on_its_way_is_not_lost(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another sample of the same prompt, asked for while a slow client still reads the first one's answer."""
    served.engine.lines = ["one", "two"]
    writing, go_on = asyncio.Event(), asyncio.Event()
    write_eof = web.Response.write_eof

    async def slow(response: web.Response, data: bytes = b"") -> None:
        if not writing.is_set():
            writing.set()
            await go_on.wait()
        await write_eof(response, data)

    monkeypatch.setattr(web.Response, "write_eof", slow)
    first = asyncio.create_task(served.chat(ASKED))
    await writing.wait()
    second = await served.chat(ASKED)
    go_on.set()
    assert [(await first).message["content"], second.message["content"]] == ["one", "two"]


async def engine_at(port: int) -> web.AppRunner:
    """Serve an engine that says "ok"."""

    async def generate(request: web.Request) -> web.Response:
        ids = TOKENIZER.encode("ok</s>")
        choice = {"token_ids": ids, "logprobs": [-0.5] * len(ids), "finish_reason": "stop"}
        return web.json_response({"choices": [choice], "weight_version": 0})

    async def models(request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "small", "max_model_len": 4096}]})

    app = web.Application()
    app.add_routes([web.post("/v1/generate", generate), web.get("/v1/models", models), web.get("/health", models)])
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, reuse_address=True).start()
    return runner


async def test_an_engine_that_is_away_is_waited_for() -> None:
    """As `prl gateway` reaches it: an engine that is started anew costs its agents time, not their rollouts."""
    port = free_port()
    runner = await engine_at(port)
    engine = connect([f"http://127.0.0.1:{port}"], "/v1/generate")
    assert isinstance(engine, EnginePool), "which waits for minutes, where one client gives up after seconds"
    gateway = Gateway(engine, small_renderer(), model="small", settings=GatewaySettings(api_keys=("client-key",)))
    async with aiohttp.ClientSession() as http:
        served = Served(gateway, TalkingEngine(), await gateway.start(), http)
        said = (await served.chat(ASKED)).message
        await runner.cleanup()
        asked = asyncio.create_task(served.chat([*ASKED, said, {"role": "user", "content": "Go on."}]))
        await asyncio.sleep(0.3)
        assert not asked.done()
        runner = await engine_at(port)
        assert (await asked).message["content"] == "ok"
        assert len(served.session.turns) == 2
    await gateway.close()
    await engine.close()
    await runner.cleanup()
