"""Open sessions outlive the gateway's process: what was answered is never lost, nor written twice."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from prl import durable
from prl.cli import gateway as command
from prl.gateway import GatewaySettings
from prl.types import SamplingParams

from .conftest import OPERATOR, Served
from .crashes import ASKED, GO_ON, Serve, again, kept, more, rows
from .small import ASK, WEATHER, TalkingEngine, small_renderer


@pytest.mark.parametrize("who", [{}, {"key": "client-key:r1"}, {"headers": {"X-PRL-Session": "r2"}}])
async def test_a_conversation_goes_on_after_a_crash(serve: Serve, tmp_path: Path, who: dict[str, Any]) -> None:
    """One rollout, one sample, no break; every id, log-probability and version is what each process recorded."""
    out = tmp_path / "out.jsonl"
    first: Served = await serve(out=out)
    first.engine.lines = [f"<think>\nwell\n</think>\nLet me see. {ASK}"]
    said = (await first.chat(ASKED, tools=[WEATHER], **who)).message
    before, [session] = first.session.turns[0], first.sessions()
    second = await again(serve, first, out)
    assert second.gateway.restored == 1
    [turn] = second.session.turns
    assert turn == before
    assert (second.session.id, second.session.created) == (session.id, session.created)
    said.pop("reasoning_content")
    reply = {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "sun"}
    await second.chat([*ASKED, said, reply], tools=[WEATHER], **who)
    await second.gateway.end_all()
    [row] = rows(out)
    assert (row["samples_per_rollout"], row["breaks"], len(row["turns"])) == (1, [], 2)
    assert [turn["weight_version"] for turn in row["turns"]] == [3, 4]
    assert [message["role"] for message in row["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert row["messages"][1]["reasoning_content"] == "well"
    assert row["tools"] == [WEATHER]
    assert kept(out) == []


async def test_every_turn_is_read_as_it_was_recorded(serve: Serve, tmp_path: Path) -> None:
    """Branches, several choices, rewritten history, changed tools, stops, routing rows: the tree is the same one."""
    out = tmp_path / "out.jsonl"
    first: Served = await serve(out=out)
    name = {"headers": {"X-PRL-Session": "all"}}
    first.engine.lines = ["one", "two", "a. Stop here", ASK, "<call>broken", "cut..."]
    choose, count = first.engine._choice, itertools.count()

    def routed() -> Any:
        choice = choose()
        width = len(first.engine.requests[-1].prompt_token_ids) + len(choice.token_ids)
        return replace(choice, routed_experts=[[[row % 7, 1]] for row in range(width)], finish_reason="stop")

    first.engine._choice = lambda: routed() if next(count) < 4 else choose()  # type: ignore[method-assign]
    said = (await first.chat(ASKED, n=2, temperature=0.5, **name)).message
    await first.chat(more(said), stop=["Stop"], seed=5, **name)
    await first.chat(more(said), tools=[WEATHER], tool_choice="none", **name)
    await first.chat(more({**said, "content": "another"}), **name)
    await first.chat([{"role": "system", "content": "Be brief."}, *ASKED], **name)
    await asyncio.gather(*(first.chat([*more(said), {**GO_ON, "name": f"b{n}"}], **name) for n in range(5)))
    session = first.session
    nodes = session._nodes
    second = await again(serve, first, out)
    restored = second.session._nodes
    assert [node.turn for node in restored] == [node.turn for node in nodes]
    for field in ("history", "answer", "key", "tools", "followers"):
        assert [getattr(node, field) for node in restored] == [getattr(node, field) for node in nodes], field
    assert second.session._asked == session._asked == 10
    assert second.session.tools == [WEATHER]


async def test_a_turn_adds_its_own_tokens_only(serve: Serve, tmp_path: Path) -> None:
    """Whole prompts in each line would be a file of gigabytes for a long conversation."""
    out = tmp_path / "out.jsonl"
    served: Served = await serve(out=out)
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Long. " * 500}]
    for _ in range(6):
        messages += [(await served.chat(messages, tools=[WEATHER])).message, GO_ON]
    sizes = [len(line) for line in kept(out)[0].read_bytes().split(b"\n") if b'"sampled"' in line]
    assert len(sizes) == 6
    assert sizes[0] > 3000
    assert max(sizes[1:]) < 1000


async def test_an_answer_that_a_crash_cut_off_is_given_to_the_same_request(serve: Serve, tmp_path: Path) -> None:
    """The turn is recorded: one more sample would be a branch that the agent never took. Once, then it is a new one."""
    out = tmp_path / "out.jsonl"
    first: Served = await serve(out=out)
    first.engine.lines = ["one", "two"]
    first.gateway.spaces.named = _without_notes(first)  # type: ignore[method-assign]
    said = (await first.chat(ASKED)).message
    second = await again(serve, first, out)
    assert (await second.chat(ASKED)).message == said
    assert second.engine.requests == []
    second.engine.lines = ["another"]
    assert (await second.chat(ASKED)).message["content"] == "another"


def _without_notes(served: Served) -> Any:
    find = served.gateway.spaces.named

    def named(key: bytes, name: str) -> Any:
        space = find(key, name)
        space.retries._on_delivered = lambda asked: None
        return space

    return named


async def test_an_answer_that_went_out_is_not_given_again(serve: Serve, tmp_path: Path) -> None:
    """The same prompt asked twice on purpose is two samples, also across a restart; a retry that says so is one."""
    out = tmp_path / "out.jsonl"
    first: Served = await serve(out=out)
    first.engine.lines = ["one"]
    await first.chat(ASKED)
    await first.until(lambda: b'"delivered"' in kept(out)[0].read_bytes())
    second = await again(serve, first, out)
    second.engine.lines = ["two"]
    assert (await second.chat(ASKED)).message["content"] == "two"
    third = await again(serve, second, out)
    assert (await third.chat(ASKED, headers={"X-Stainless-Retry-Count": "1"})).message["content"] == "two"
    assert [len(session.turns) for session in third.sessions()] == [1, 1]


async def test_no_key_opens_anothers_session_after_a_crash(serve: Serve, tmp_path: Path) -> None:
    """Neither with the same words nor with the same name; and no key stands in the files."""
    out = tmp_path / "out.jsonl"
    keys = ("client-key", "other")
    first: Served = await serve(out=out, api_keys=keys)
    said = (await first.chat(ASKED, key="client-key:r1")).message
    assert b"client-key" not in kept(out)[0].read_bytes()
    assert kept(out)[0].stat().st_mode & 0o077 == 0
    second = await again(serve, first, out, api_keys=keys)
    await second.chat(more(said), key="other:r1")
    await second.chat(ASKED, key="other:r1", headers={"X-Stainless-Retry-Count": "1"})
    assert [len(session.turns) for session in second.sessions()] == [1, 2]
    third = await again(serve, second, out, api_keys=("new",))
    assert (await third.chat(more(said), key="client-key:r1")).status == 401
    await third.chat(more(said), key="new:r1")
    await third.gateway.end_all()
    assert [len(row["turns"]) for row in rows(out)] == [1, 2, 1], "a key that was taken back loses nothing"


async def test_a_key_of_its_own_goes_on(serve: Serve, tmp_path: Path) -> None:
    """With the sampling and the seeds it was opened with; who had opened it is gone, so it ends when it is idle."""
    out = tmp_path / "out.jsonl"
    first: Served = await serve(out=out)
    params = SamplingParams(temperature=0.7, max_tokens=8, stop_token_ids=(5,))
    mine, twin = (first.gateway.open_session(sampling=params, seed=11, cache_salt="w3") for _ in range(2))
    said = (await first.chat(ASKED, key=mine.api_key)).message
    for body in (ASKED, more(said)):
        await first.chat(body, key=twin.api_key)
    expected = first.engine.requests[-1].sampling
    second = await again(serve, first, out, idle_seconds=2)
    await second.chat(more(said), key=mine.api_key, temperature=0)
    request = second.engine.requests[-1]
    assert (request.sampling, request.cache_salt) == (expected, "w3")
    for session in second.sessions():
        session._used -= 2
    await second.until(lambda: len(rows(out)) == 2)
    assert (await second.chat(ASKED, key=mine.api_key)).status == 401


@pytest.mark.parametrize("keep_open", [True, False])
async def test_a_stop_while_fifty_requests_run(serve: Serve, tmp_path: Path, keep_open: bool) -> None:
    """All are answered, with what to do: come back to the next gateway, or end. No turn is lost, none is half."""
    out = tmp_path / "out.jsonl"
    first: Served = await serve(out=out)
    names = [f"client-key:r{number}" for number in range(50)]
    said = [answer.message for answer in await asyncio.gather(*(first.chat(ASKED, key=name) for name in names))]
    first.engine.gate = asyncio.Event()
    bodies = list(zip(names, map(more, said), strict=True))
    running = [asyncio.create_task(first.chat(body, key=name)) for name, body in bodies]
    await first.until(lambda: len(first.engine.requests) == 100)
    await first.gateway.close(keep_open=keep_open)
    answers = await asyncio.gather(*running)
    expected = (503, "gateway_restarting", "2") if keep_open else (403, "session_closed", None)
    assert {(one.status, one.error["code"], one.headers.get("Retry-After")) for one in answers} == {expected}
    assert first.engine.aborted == 50
    assert len(rows(out)) == (0 if keep_open else 50)
    second: Served = await serve(out=out)
    assert second.gateway.restored == (50 if keep_open else 0)
    await asyncio.gather(*(second.chat(body, key=name) for name, body in bodies))
    await second.gateway.end_all()
    found = rows(out)
    assert sorted({len(row["turns"]) for row in found}) == ([2] if keep_open else [1])
    assert {(row["samples_per_rollout"], len(row["breaks"])) for row in found} == {(1, 0)}
    assert len(found) == (50 if keep_open else 100)


@pytest.mark.parametrize("keep_open", [True, False])
async def test_the_command_keeps_open_sessions_where_it_is_told_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], keep_open: bool
) -> None:
    out = tmp_path / "out.jsonl"
    monkeypatch.setattr(command, "connect", lambda urls, route: TalkingEngine())
    settings = GatewaySettings(api_keys=("client-key",), out=out)
    said = []
    for _ in range(2):
        work = command._serve([""], "", small_renderer(), "small", settings, "127.0.0.1", 0, keep_open)
        running = asyncio.create_task(work)
        while " at " not in (printed := capsys.readouterr().out):
            await asyncio.sleep(0.01)
        url = printed.partition(" at ")[2].partition(",")[0]
        body = {"model": "small", "messages": ASKED}
        async with aiohttp.ClientSession(headers={"Authorization": "Bearer client-key"}) as http:
            assert (await http.post(f"{url}/chat/completions", json=body)).status == 200
        os.kill(os.getpid(), signal.SIGTERM)
        await running
        said.append(printed + capsys.readouterr().out)
    assert ("open sessions that go on: 1" in said[1]) is keep_open
    assert len(rows(out)) == (0 if keep_open else 2)
    assert len(kept(out)) == (2 if keep_open else 0)


@pytest.mark.parametrize("is_up", [True, False])
async def test_the_command_says_at_once_what_it_waits_for(capsys: pytest.CaptureFixture[str], is_up: bool) -> None:
    """Two minutes without a word look like a program that hangs."""
    engine = TalkingEngine()
    engine.healthy = is_up
    assert await command._only_model(engine, ["http://a", "http://b"]) == "small"
    said = capsys.readouterr()
    assert said.out == ""
    assert ("waiting for http://a or http://b" in said.err) is not is_up


async def test_open_sessions_that_nobody_goes_on_with_are_written(serve: Serve, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    first: Served = await serve(out=out)
    await first.chat(ASKED, key="client-key:r1")
    second = await again(serve, first, out, idle_seconds=0.1)
    await second.until(lambda: bool(rows(out)))
    assert [row["session"] for row in rows(out)] == ["r1"]
    await second.until(lambda: kept(out) == [])
    await second.gateway.close()
    assert not out.with_name("out.jsonl.open").exists()


async def test_a_full_disk_refuses_the_turn_and_leaves_nothing_of_it(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent is told to come back; an answer that is not recorded is not given."""
    out = tmp_path / "out.jsonl"
    served: Served = await serve(out=out)
    served.engine.lines = ["one", "lost", "two"]
    said = (await served.chat(ASKED)).message
    await served.until(lambda: b'"delivered"' in kept(out)[0].read_bytes())
    before = kept(out)[0].read_bytes()

    def full(handle: int, data: Any) -> int:
        if len(data) < 100:
            raise OSError(28, "No space left on device")
        return os.write(handle, data[:99])

    with monkeypatch.context() as patched:
        patched.setattr(durable, "os", _os(write=full))
        for answer in (await served.chat(more(said)), await served.chat(ASKED, key="client-key:new")):
            assert (answer.status, answer.error["code"]) == (503, "not_recorded")
            assert answer.error["type"] == "server_error"
            assert "No space left" in answer.error["message"]
            assert str(tmp_path) not in answer.error["message"]
            assert answer.headers["Retry-After"] == "2"
    assert [path.read_bytes() for path in kept(out)] == [before]
    assert len(served.session.turns) == 1
    assert (await served.chat(more(said))).status == 200
    await served.gateway.end_all()
    assert [turn["message"]["content"] for turn in rows(out)[0]["turns"]] == ["one", "ok"]


def _os(**changes: Any) -> Any:
    return SimpleNamespace(**{**vars(os), **changes})


async def test_a_client_that_goes_away_while_its_turn_is_written_gets_it_on_its_retry(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that hangs for longer than the client waits: one turn, though two were asked for."""
    out = tmp_path / "out.jsonl"
    served: Served = await serve(out=out)
    served.engine.lines = ["one", "two"]
    writing, go_on = asyncio.Event(), asyncio.Event()
    make = served.gateway._add

    def slow(*args: Any, **kwargs: Any) -> Any:
        session = make(*args, **kwargs)
        write = session.file.sampled

        async def sampled(line: Any) -> None:
            writing.set()
            await go_on.wait()
            await write(line)

        session.file.sampled = sampled
        return session

    monkeypatch.setattr(served.gateway, "_add", slow)
    asked = asyncio.create_task(served.chat(ASKED))
    await writing.wait()
    asked.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asked
    await asyncio.sleep(0.02)
    retry = asyncio.create_task(served.chat(ASKED))
    await asyncio.sleep(0.02)
    ending = asyncio.create_task(served.gateway.end_all())
    await asyncio.sleep(0.02)
    go_on.set()
    assert (await retry).message["content"] == "one"
    await ending
    assert [len(row["turns"]) for row in rows(out)] == [1]
    assert kept(out) == []


class Died(Exception):
    """The process is gone from here on."""


class DyingOs:
    """The functions of `os` for a process that dies at its n-th operation on files; half of a write is done."""

    def __init__(self, at: int) -> None:
        self.left = at

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in ("open", "write", "fsync", "ftruncate", "unlink", "close"):
            return real

        def work(*args: Any) -> Any:
            self.left -= 1
            if self.left == 0 and name == "write":
                os.write(args[0], args[1][: len(args[1]) // 2])
            if self.left <= 0 and name != "close":
                raise Died(name)
            return real(*args)

        return work


async def play(served: Served, told: list[dict[str, Any]]) -> None:
    """Ask for what is left of two turns, and end; what gets no answer is asked again, of the next process."""
    choose = served.engine._choice

    def say() -> Any:
        served.engine.lines = ["two" if "Go on." in served.engine.prompt() else "one"]
        return choose()

    served.engine._choice = say  # type: ignore[method-assign]
    while len(told) < 2:
        answer = await served.chat(more(told[0]) if told else ASKED, key="client-key:r1")
        if answer.status != 200:
            return
        told.append(answer.message)
    await served.send("DELETE", "/rollouts", key=OPERATOR)


async def test_a_death_at_any_operation_on_files_loses_nothing(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What was told to the agent is recorded, once, as one sample; the next process goes on from it."""
    caplog.set_level("CRITICAL")  # a dead process has no log
    for number in itertools.count(1):
        out = tmp_path / f"{number}.jsonl"
        first: Served = await serve(out=out)
        told: list[dict[str, Any]] = []
        dying = DyingOs(number)
        with monkeypatch.context() as patched:
            patched.setattr(durable, "os", dying)
            await play(first, told)
            await asyncio.gather(*(note for one in first.sessions() for note in one._notes), return_exceptions=True)
        if dying.left > 0:
            break
        second = await again(serve, first, out)
        await play(second, told)
        await second.gateway.end_all()
        [row] = rows(out)
        assert (row["samples_per_rollout"], row["breaks"]) == (1, []), number
        assert [message["content"] for message in told] == ["one", "two"]
        assert [turn["message"]["content"] for turn in row["turns"]] == ["one", "two"], number
        assert kept(out) == []
    assert number > 20


async def test_a_file_that_cannot_be_removed_is_told_and_does_not_end_the_reaper(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "out.jsonl"
    served: Served = await serve(out=out, idle_seconds=0.1)

    def stays(path: str) -> None:
        raise OSError(30, "Read-only file system")

    with monkeypatch.context() as patched:
        patched.setattr(durable, "os", _os(unlink=stays))
        await served.chat(ASKED)
        await served.until(lambda: "still kept as open: Read-only file system" in caplog.text)
    await served.chat([*ASKED, GO_ON])
    await served.until(lambda: len(rows(out)) == 2)
