"""Sessions: isolated, forced, closed, idle, and written down."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import weakref
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from prl.gateway import Gateway, GatewaySession, GatewaySettings
from prl.gateway.answer import Completion
from prl.gateway.export import RolloutFile
from prl.gateway.faults import GatewayFault
from prl.types import ConfigError, SamplingParams

from .conftest import OPERATOR, Served
from .small import TOKENIZER, TalkingEngine, small_renderer

ASKED = [{"role": "user", "content": "Hi"}]


def more(message: dict[str, Any]) -> list[dict[str, Any]]:
    return [*ASKED, message, {"role": "user", "content": "Go on."}]


async def test_no_session_extends_anothers_turns(serve: Callable[..., Any]) -> None:
    """An agent that guesses or copies another's conversation gets it rendered, never the other's exact ids."""
    served: Served = await serve(api_keys=("client-key", "other"))
    served.engine.lines = ["One. \n", "x", "x", "x"]
    first = (await served.chat(ASKED)).message
    strangers = ({"key": "other"}, {"headers": {"X-PRL-Session": "b"}}, {"key": "client-key:c"})
    for stranger in strangers:
        await served.chat(more({**first, "content": "One. \n"}), **stranger)  # type: ignore[arg-type]
    assert sorted(len(session.turns) for session in served.sessions()) == [1, 1, 1, 1]
    assert len({session.id for session in served.sessions()}) == 4


async def test_a_name_in_the_key_is_the_name_in_the_header(served: Served) -> None:
    """Agents that can set a key but no header have sessions too."""
    served.engine.lines = ["one", "two"]
    first = (await served.chat(ASKED, key="client-key:r1")).message
    await served.chat(more(first), headers={"X-PRL-Session": "r1"})
    assert [turn.message["content"] for turn in served.session.turns] == ["one", "two"]
    assert served.session.name == "r1"


async def test_without_a_name_each_conversation_is_a_rollout(served: Served) -> None:
    served.engine.lines = ["one", "two", "three"]
    first = (await served.chat(ASKED)).message
    await served.chat([{"role": "user", "content": "Other"}])
    await served.chat(more(first))
    assert [len(session.turns) for session in served.sessions()] == [2, 1]


async def test_requests_at_once_in_one_session(served: Served) -> None:
    """Twenty branches at once: nothing lost, each with its own answer."""
    served.engine.lines = [f"line {n}" for n in range(21)]
    name = {"X-PRL-Session": "many"}
    first = (await served.chat(ASKED, headers=name)).message
    bodies = [[*ASKED, first, {"role": "user", "content": f"branch {n}"}] for n in range(20)]
    answers = await asyncio.gather(*(served.chat(body, headers=name) for body in bodies))
    assert sorted(answer.message["content"] for answer in answers) == sorted(f"line {n}" for n in range(1, 21))
    turns = served.session.turns
    before = [*turns[0].prompt_ids, *turns[0].completion_ids]
    assert len(turns) == 21
    assert all(turn.prompt_ids[: len(before)] == before for turn in turns[1:])


async def test_an_opened_session_has_its_own_key_and_records_all(served: Served) -> None:
    """What an orchestrator does: one key a rollout, and its turns at the end."""
    served.engine.lines = ["one", "two"]
    mine, other = served.gateway.open_session(), served.gateway.open_session()
    assert mine.api_key != other.api_key
    first = (await served.chat(ASKED, key=mine.api_key)).message
    await served.chat(more(first), key=mine.api_key)
    assert [turn.message["content"] for turn in await mine.close()] == ["one", "two"]
    assert [message["content"] for message in mine.messages] == ["Hi", "one", "Go on.", "two"]
    assert other.turns == ()
    assert mine.api_key not in repr(served.gateway.settings)


async def test_a_closed_session_takes_and_leaves_nothing(served: Served) -> None:
    session = served.gateway.open_session()
    served.engine.gate = asyncio.Event()
    running = asyncio.create_task(served.chat(ASKED, key=session.api_key))
    await served.until(lambda: len(served.engine.requests) == 1)
    assert await session.close() == ()
    answer = await running
    assert (answer.status, answer.error["code"]) == (403, "session_closed")
    assert served.engine.aborted == 1
    assert (await served.chat(ASKED, key=session.api_key)).status == 401
    assert served.sessions() == []


async def test_what_the_trainer_samples_with_beats_what_the_agent_asks_for(served: Served) -> None:
    """An agent's temperature of 0 would train on-policy data that the policy never draws."""
    params = SamplingParams(temperature=0.7, top_p=0.9, top_k=40, max_tokens=8, stop_token_ids=(5,))
    session = served.gateway.open_session(sampling=params, seed=11, cache_salt="w3")
    for asked in ({"temperature": 0, "top_p": 0.1, "max_tokens": 500, "seed": 1}, {"max_tokens": 4, "seed": 1}):
        await served.chat(ASKED, key=session.api_key, **asked)
    first, second = served.engine.requests
    assert (first.sampling.temperature, first.sampling.top_p, first.sampling.top_k) == (0.7, 0.9, 40)
    assert (first.sampling.max_tokens, second.sampling.max_tokens) == (8, 4)
    assert len({first.sampling.seed, second.sampling.seed, 1, None}) == 4
    assert first.cache_salt == "w3"
    stop = TOKENIZER.encode("</s>")[0]
    assert first.sampling.stop_token_ids == (stop, 5)
    assert session.turns[0].temperature == 0.7


async def test_equal_seeds_give_equal_seeds_of_turns(served: Served) -> None:
    """A run that is repeated asks the engine for the same draws."""
    for seed in (4, 4, 5):
        session = served.gateway.open_session(seed=seed)
        await served.chat(ASKED, key=session.api_key)
    seeds = [request.sampling.seed for request in served.engine.requests]
    assert seeds[0] == seeds[1] != seeds[2]


async def test_the_gateways_settings_force_every_session(serve: Callable[..., Any]) -> None:
    served: Served = await serve(sampling={"temperature": 1.0, "max_tokens": 9})
    await served.chat(ASKED, temperature=0.1)
    sampling = served.engine.requests[0].sampling
    assert (sampling.temperature, sampling.max_tokens) == (1.0, 9)


async def test_too_many_sessions_are_refused(serve: Callable[..., Any]) -> None:
    served: Served = await serve(max_sessions=2)
    for name in "ab":
        await served.chat(ASKED, headers={"X-PRL-Session": name})
    answer = await served.chat(ASKED, headers={"X-PRL-Session": "c"})
    assert (answer.status, answer.error["code"]) == (429, "too_many_sessions")
    assert len(served.gateway.spaces._named) == 2


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


async def test_the_operator_reads_and_ends_rollouts(serve: Callable[..., Any], tmp_path: Path) -> None:
    out = tmp_path / "deep" / "rollouts.jsonl"
    served: Served = await serve(out=out)
    served.engine.lines = ["one", "two"]
    first = (await served.chat(ASKED, headers={"X-PRL-Session": "r1"})).message
    await served.chat(more(first), headers={"X-PRL-Session": "r1"})
    [row] = (await served.send("GET", "/rollouts", key=OPERATOR)).body["data"]
    assert (row["session"], row["turns"], row["messages"]) == ("r1", 2, 4)
    path = f"/rollouts/{row['trajectory_id']}"
    read = (await served.send("GET", path, key=OPERATOR)).body
    ended = (await served.send("DELETE", path, key=OPERATOR)).body
    assert {**read, "written": 0} == {**ended, "written": 0}
    assert (await served.send("GET", path, key=OPERATOR)).status == 404
    [written] = lines(out)
    assert written == ended
    assert written["samples_per_rollout"] == 1
    assert written["breaks"] == []
    assert [message["content"] for message in written["messages"]] == ["Hi", "one", "Go on.", "two"]
    requests = served.engine.requests
    assert [turn["prompt_ids"] for turn in written["turns"]] == [list(one.prompt_token_ids) for one in requests]
    assert {len(turn["logprobs"]) - len(turn["completion_ids"]) for turn in written["turns"]} == {0}
    assert set(written["turns"][0]) == {
        *("prompt_ids", "completion_ids", "logprobs", "finish_reason", "weight_version", "temperature", "message")
    }


async def test_what_is_ended_twice_at_once_is_written_once(serve: Callable[..., Any], tmp_path: Path) -> None:
    served: Served = await serve(out=tmp_path / "out.jsonl")
    for name in "abc":
        await served.chat(ASKED, key=f"client-key:{name}")
    mine = served.gateway.open_session()
    answers = await asyncio.gather(*(served.gateway.end_all() for _ in range(3)))
    assert sum(map(len, answers)) == 4
    assert sorted(row["session"] for row in lines(tmp_path / "out.jsonl")) == ["a", "b", "c"]
    assert await mine.close() == ()


async def test_one_session_ended_twice_at_once_is_told_so(serve: Callable[..., Any], tmp_path: Path) -> None:
    served: Served = await serve(out=tmp_path / "out.jsonl")
    await served.chat(ASKED)
    end, name = served.gateway.end, served.session.id
    record, fault = await asyncio.gather(end(name), end(name), return_exceptions=True)
    assert isinstance(record, dict)
    assert record["trajectory_id"] == name
    assert isinstance(fault, GatewayFault)
    assert fault.status == 404


async def test_an_operator_that_goes_away_loses_nothing(
    serve: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A DELETE that timed out has closed sessions already: what they recorded must still be written."""
    served: Served = await serve(out=tmp_path / "out.jsonl")
    for name in "abc":
        await served.chat(ASKED, key=f"client-key:{name}")
    closed, go_on = asyncio.Event(), asyncio.Event()
    close = GatewaySession.close

    async def slow(session: GatewaySession) -> Any:
        turns = await close(session)
        closed.set()
        await go_on.wait()
        return turns

    monkeypatch.setattr(GatewaySession, "close", slow)
    asked = asyncio.create_task(served.send("DELETE", "/rollouts", key=OPERATOR))
    await closed.wait()
    asked.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asked
    await asyncio.sleep(0.05)
    go_on.set()
    await served.gateway.close()
    assert sorted(row["session"] for row in lines(tmp_path / "out.jsonl")) == ["a", "b", "c"]


async def test_turns_that_make_no_samples_are_written_with_the_reason(
    serve: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One rollout with a fault of the engine must not take those with it that are ended at the same time."""
    served: Served = await serve(out=tmp_path / "out.jsonl")
    await served.chat(ASKED, key="client-key:good")
    choose = served.engine._choice
    monkeypatch.setattr(served.engine, "_choice", lambda: replace(choose(), routed_experts=[[1]]))
    await served.chat(ASKED, key="client-key:bad")
    answer = await served.send("DELETE", "/rollouts", key=OPERATOR)
    assert answer.status == 200
    good, bad = lines(tmp_path / "out.jsonl")
    assert (good["samples_per_rollout"], len(good["turns"])) == (1, 1)
    assert (bad["samples_per_rollout"], len(bad["turns"])) == (None, 1)
    assert "1 routing rows" in bad["error"]


async def test_two_gateways_never_write_one_file(tmp_path: Path) -> None:
    """The second would take the first's half-written line for one that a crash cut off, and move it away."""
    out = tmp_path / "out.jsonl"
    first = Gateway(TalkingEngine(), small_renderer(), model="small", settings=GatewaySettings(out=out))
    with pytest.raises(ConfigError, match="another gateway"):
        Gateway(TalkingEngine(), small_renderer(), model="small", settings=GatewaySettings(out=out))
    await first.close()
    await Gateway(TalkingEngine(), small_renderer(), model="small", settings=GatewaySettings(out=out)).close()


async def test_answers_are_kept_without_their_requests(served: Served) -> None:
    """A session remembers a thousand answers for retries: with the conversations they would fill the memory."""
    text = "a marker that is looked for"
    await served.chat([{"role": "user", "content": text}])
    [space] = served.gateway.spaces._named.values()
    kept = [asked.task.result() for asked in space.retries._asked.values()]
    names = [field.name for field in fields(Completion)]
    assert [{name for name in names if text in repr(getattr(one, name))} for one in kept] == [{"nodes"}]


async def test_an_ended_session_leaves_nothing_in_memory(served: Served) -> None:
    """A shared key without names is one place for a week: the tokens of all it ever answered must not stay in it."""
    served.engine.lines = ["one", "two"]
    await served.chat(ASKED)
    ended = weakref.ref(served.session)
    await served.chat([{"role": "user", "content": "another"}])
    await served.gateway.end(served.sessions()[0].id)
    gc.collect()
    assert ended() is None
    assert len(served.sessions()) == 1


async def test_a_name_that_ended_begins_anew(serve: Callable[..., Any], tmp_path: Path) -> None:
    served: Served = await serve(out=tmp_path / "out.jsonl")
    name = {"X-PRL-Session": "r1"}
    first = (await served.chat(ASKED, headers=name)).message
    await served.send("DELETE", "/rollouts", key=OPERATOR)
    await served.chat(more(first), headers=name)
    await served.gateway.end_all()
    assert [len(row["turns"]) for row in lines(tmp_path / "out.jsonl")] == [1, 1]


async def test_a_name_that_began_anew_outlives_the_last_answer_from_before(served: Served) -> None:
    """Or the new rollout would be torn in two: that answer may go out after its session was ended."""
    spaces, key = served.gateway.spaces, "client-key:r1"
    before = spaces.find({"Authorization": f"Bearer {key}"})
    spaces.tidy(before)
    said = (await served.chat(ASKED, key=key)).message
    spaces.tidy(before)
    await served.chat(more(said), key=key)
    assert len(served.session.turns) == 2


async def test_a_conversation_that_ended_is_gone_on_from_in_a_new_rollout(served: Served) -> None:
    """Its turns were written and forgotten: nothing may be added to what was given away."""
    served.engine.lines = ["one", "other", "two"]
    first = (await served.chat(ASKED)).message
    ended = served.session
    await served.chat([{"role": "user", "content": "Another"}])
    await served.send("DELETE", f"/rollouts/{ended.id}", key=OPERATOR)
    assert (await served.chat(more(first))).message["content"] == "two"
    assert len(ended.turns) == 1
    assert [len(session.turns) for session in served.sessions()] == [1, 1]


async def test_idle_sessions_end_and_are_written(serve: Callable[..., Any], tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    served: Served = await serve(out=out, idle_seconds=0.2)
    await served.chat(ASKED)
    mine = served.gateway.open_session()
    await served.until(lambda: out.exists() and bool(out.stat().st_size))
    assert len(lines(out)[0]["turns"]) == 1
    assert served.sessions() == [mine], "who opened a session ends it"


async def test_a_session_that_is_used_while_idle_ones_end_stays(
    serve: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent that comes back after a long tool call would be told that its session is closed."""
    served: Served = await serve(out=tmp_path / "out.jsonl", idle_seconds=1)
    for name in "ab":
        await served.chat(ASKED, key=f"client-key:{name}")
    idle, used = served.sessions()
    close = GatewaySession.close

    async def slow(session: GatewaySession) -> Any:
        used._used += 60
        return await close(session)

    monkeypatch.setattr(GatewaySession, "close", slow)
    idle._used = used._used = idle._used - 1
    await served.until(lambda: idle.is_closed)
    await served.until(lambda: not served.gateway._ending)
    assert served.sessions() == [used]


async def test_without_an_output_idle_sessions_stay(serve: Callable[..., Any]) -> None:
    """Ending them would lose what nobody has fetched."""
    served: Served = await serve(idle_seconds=0.05)
    await served.chat(ASKED)
    await asyncio.sleep(0.3)
    assert len(served.session.turns) == 1


async def test_open_sessions_are_written_when_the_gateway_closes(tmp_path: Path) -> None:
    import aiohttp

    engine = TalkingEngine()
    settings = GatewaySettings(api_keys=("k",), out=tmp_path / "out.jsonl")
    gateway = Gateway(engine, small_renderer(), model="small", settings=settings)
    served = Served(gateway, engine, await gateway.start(), aiohttp.ClientSession())
    await served.chat(ASKED, key="k:a")
    engine.gate = asyncio.Event()
    running = asyncio.create_task(served.chat(ASKED, key="k:b"))
    await served.until(lambda: len(engine.requests) == 2)
    await gateway.close()
    assert (await running).status == 403
    await served.http.close()
    assert [row["session"] for row in lines(tmp_path / "out.jsonl")] == ["a"]


async def test_a_full_disk_loses_no_rollout(
    serve: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a line is taken back, the rollout is kept, and written once there is room."""
    out = tmp_path / "out.jsonl"
    served: Served = await serve(out=out)
    await served.chat(ASKED, key="client-key:a")
    write, calls = os.write, []

    def fill_up(handle: int, data: Any) -> int:
        calls.append(len(data))
        if len(calls) == 1:
            return write(handle, data[:100])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", fill_up)
        answer = await served.send("DELETE", "/rollouts", key=OPERATOR)
    assert (answer.status, answer.error["code"]) == (500, "gateway_error")
    assert "No space left" in answer.error["message"]
    assert (len(calls), out.read_bytes()) == (2, b"")
    await served.chat(ASKED, key="client-key:b")
    await served.gateway.end_all()
    assert [row["session"] for row in lines(out)] == ["a", "b"]


def test_a_line_cut_off_by_a_crash_is_set_aside(tmp_path: Path) -> None:
    """Appending behind half a line would make two rollouts unreadable."""
    path = tmp_path / "out.jsonl"
    path.write_bytes(b'{"a": 1}\n' + b'{"b": ' + b"2" * 70_000)
    RolloutFile(path).append({"c": 3})
    assert lines(path) == [{"a": 1}, {"c": 3}]
    assert (tmp_path / "out.jsonl.partial").read_bytes().startswith(b'{"b": 22')


@pytest.mark.parametrize(
    "wrong",
    [
        {"api_keys": ("a", "a")},
        {"api_keys": ("a:b",)},
        {"api_keys": ("",)},
        {"api_keys": ("a",), "operator_key": "a"},
        {"max_messages": 0},
        {"idle_seconds": 0},
        {"keep_alive_seconds": 0},
        {"read_seconds": 0},
        {"sampling": {"n": 4}},
    ],
)
def test_wrong_settings_are_told(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        GatewaySettings(**wrong)


async def test_a_taken_port_is_told(served: Served) -> None:
    port = int(served.url.split(":")[2].split("/")[0])
    other = Gateway(TalkingEngine(), small_renderer(), model="small")
    with pytest.raises(ConfigError, match="cannot listen"):
        await other.start(port=port)
