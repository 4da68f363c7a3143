"""Executors: rollouts cross process borders unchanged, and a worker made from JSON plays what any other plays."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from prl.contracts import RolloutExecutor, RolloutJob, WorkerSpec
from prl.types import (
    ConfigError,
    InvalidToolCall,
    ParsedResponse,
    ParsedToolCall,
    PluginError,
    Rollout,
    Turn,
)
from prl_train.executor import LocalExecutor, WorkerSettings, create_worker, decode_rollout, encode_rollout
from prl_train.executor.shared import share_engine, shared_engine
from prl_train.executor.worker import Worker
from prl_train.run import RunError

CHILD = Path(__file__).parent / "child_worker.py"


def full_rollout() -> Rollout:
    parsed = ParsedResponse(
        content="so \ud800 it is",  # half a surrogate pair: models do write them
        reasoning_content="hm",
        tool_calls=(ParsedToolCall("call_1", "guess", {"n": 10**30, "deep": [None, True, {"é": 1.5}]}, (1, 3)),),
        invalid_tool_calls=(InvalidToolCall("<tool_call>{", "cut", (3, 4)),),
        reasoning_complete=False,
    )
    message = {**parsed.to_message(), "extra": "kept"}
    turn = Turn(
        prompt_ids=[1, 2],
        completion_ids=[3, 4],
        logprobs=[-0.1, -1e-9],
        finish_reason="stop",
        weight_version=3,
        message=message,  # type: ignore[arg-type]
        parsed=parsed,
        temperature=0.7,
    )
    return Rollout(
        trajectory_id="group-000001/002",
        turns=(turn, replace(turn, parsed=None, message={"role": "assistant", "content": ""})),
        reward=0.5,
        environment="scripted",
        example_id="e",
        group_id="g",
        stop_reason="error",
        is_truncated=True,
        error="OSError: gone",
        metrics={"malformed": 1.0},
        messages=({"role": "user", "content": "hi"}, message),  # type: ignore[arg-type]
        turn_messages=(1,),
        output="printed",
        tools=({"type": "function", "function": {"name": "guess"}},),
    )


def test_a_rollout_that_crosses_a_border_is_the_same_rollout() -> None:
    rollout = full_rollout()
    assert decode_rollout(encode_rollout(rollout)) == rollout
    assert set(asdict(rollout)) == set(Rollout.__dataclass_fields__)


def test_a_rollout_on_the_way_takes_no_more_than_its_last_prompt() -> None:
    """A long rollout's prompts would be a hundred times its tokens; one that rewrote history is written whole."""
    rollout = full_rollout()
    turns = [replace(rollout.turns[1], prompt_ids=list(range(300, 1300)))]
    while len(turns) < 50:
        last = turns[-1]
        turns.append(replace(last, prompt_ids=[*last.prompt_ids, *last.completion_ids, len(turns)]))
    turns.append(replace(turns[-1], prompt_ids=[7, *turns[-1].prompt_ids[1:]]))
    data = encode_rollout(replace(rollout, turns=tuple(turns)))
    got = decode_rollout(data).turns
    assert got == tuple(turns)
    assert len(data) < 20_000
    assert all(turn.prompt_ids.shares(got[0].prompt_ids) for turn in got[:50])  # type: ignore[attr-defined]


def test_routed_experts_stay_an_array() -> None:
    rollout = full_rollout()
    experts = np.arange(12, dtype=np.int16).reshape(3, 2, 2)
    sent = replace(rollout, turns=(replace(rollout.turns[0], routed_experts=experts),))
    got = decode_rollout(encode_rollout(sent)).turns[0].routed_experts
    assert (got.dtype, got.tolist()) == (np.int16, experts.tolist())


FIRST_GOES_ON = msgspec.msgpack.encode(
    {"format": 2, "text": '[{"turns": 1}, [{}]]', "prompts": [[True, [1]]], "numbers": [[[], None, None]]}
)


@pytest.mark.parametrize(
    "data", [b"", b"nonsense", encode_rollout(full_rollout())[:-9], b"\x81\xa6format\x01", FIRST_GOES_ON]
)
def test_bytes_that_are_no_rollout_are_an_error_that_says_so(data: bytes) -> None:
    with pytest.raises(RunError, match="not a rollout"):
        decode_rollout(data)


class ProcessExecutor:
    """Plays jobs in a child process: JSON in, a rollout's bytes out. The smallest executor that has a border."""

    def __init__(self) -> None:
        self._child: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()

    async def start(self, spec: WorkerSpec) -> None:
        pipe = asyncio.subprocess.PIPE
        self._child = await asyncio.create_subprocess_exec(sys.executable, str(CHILD), stdin=pipe, stdout=pipe)
        await self._ask(asdict(spec))

    async def play(self, job: RolloutJob) -> Rollout:
        return decode_rollout(await self._ask(asdict(job)))

    async def close(self) -> None:
        if self._child is not None and self._child.stdin is not None:
            self._child.stdin.close()
            await self._child.wait()

    async def _ask(self, value: dict[str, Any]) -> bytes:
        assert self._child is not None
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        async with self._turn:
            self._child.stdin.write(json.dumps(value).encode() + b"\n")
            size = int.from_bytes(await self._child.stdout.readexactly(4), "big")
            return await self._child.stdout.readexactly(size)


async def test_a_worker_in_another_process_plays_the_rollouts_of_the_local_one() -> None:
    spec = WorkerSpec(target="scripted_worker:create", settings={"seed": 5, "turns": 3})
    jobs = [RolloutJob(group=group, member=member, cache_salt="weights-2") for group in (0, 7) for member in (0, 1)]
    jobs.append(RolloutJob(group=7, member=0, cache_salt="weights-2", evaluation="held-out"))
    played: list[list[Rollout]] = []
    sys.path.insert(0, str(CHILD.parent))
    try:
        for executor in (LocalExecutor(), ProcessExecutor()):
            assert isinstance(executor, RolloutExecutor)
            await executor.start(spec)
            played.append([await executor.play(job) for job in jobs])
            await executor.close()
    finally:
        sys.path.remove(str(CHILD.parent))
    assert played[0] == played[1]
    assert [one.trajectory_id for one in played[1]] == [
        "group-000000/000",
        "group-000000/001",
        "group-000007/000",
        "group-000007/001",
        "eval-held-out-000007/000",
    ]
    assert len({turn.completion_ids[0] for one in played[1] for turn in one.turns}) > 1


def settings(**values: Any) -> dict[str, Any]:
    made = WorkerSettings(
        model="nowhere",
        client_mode="renderer",
        environments=[{"name": "reverse-text"}],
        **values,  # type: ignore[list-item]
    )
    return json.loads(json.dumps(made.model_dump(mode="json")))  # type: ignore[no-any-return]


def test_a_worker_elsewhere_cannot_reach_an_embedded_engine_and_says_what_to_do() -> None:
    with pytest.raises(ConfigError) as caught:
        create_worker(settings(engine_key="of-another-process"))
    assert "lives in the orchestrator's process" in caught.value.what
    assert "engine.url" in caught.value.next_step


def test_a_worker_with_other_plugins_than_the_run_refuses_to_play() -> None:
    row = {"name": "acme", "distribution": "acme-prl", "version": "9", "offers": {"renderer": ["acme"]}}
    with pytest.raises(PluginError, match="this process has other plugins than the run: acme: the run has"):
        create_worker(settings(plugins_seen={"plugins": [row], "prefer": {}, "digest": ""}))


async def test_a_worker_ends_its_environments_and_then_its_connections_whatever_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What an environment holds (servers, sandboxes) would else outlive the run."""
    ended: list[str] = []

    class Holding:
        name = "holding"

        async def aclose(self) -> None:
            ended.append("environment")
            raise OSError("its sandbox is gone")

    class Pool:
        async def close(self) -> None:
            ended.append("pool")

    monkeypatch.setattr("prl_train.executor.settings.create", lambda kind, name, **options: Holding())
    anything: Any = object()
    pool: Any = Pool()
    worker = Worker(WorkerSettings.model_validate(settings()), anything, anything, engine=pool, pool=pool)
    with pytest.raises(OSError, match="its sandbox is gone"):
        await worker.close()
    assert ended == ["environment", "pool"]


def test_a_shared_engine_is_found_by_its_key_and_only_while_it_lives() -> None:
    engine: Any = object()
    with share_engine(engine) as key:
        assert shared_engine(key) is engine
    assert shared_engine(key) is None


async def test_a_target_that_is_not_installed_is_named() -> None:
    with pytest.raises(ConfigError, match="cannot be imported"):
        await LocalExecutor().start(WorkerSpec(target="prl_train.nothing:create"))


@pytest.mark.parametrize("target", ["", "prl_train.executor", "prl_train.executor:nothing", "prl_train.errors:__doc__"])
async def test_a_target_that_is_no_callable_is_named(target: str) -> None:
    """Each would else fail deep inside a worker's process, with an error of Python's own."""
    with pytest.raises(ConfigError, match="cannot be imported") as caught:
        await LocalExecutor().start(WorkerSpec(target=target))
    assert caught.value.where == repr(target)


async def test_a_worker_that_was_not_started_says_so() -> None:
    with pytest.raises(ConfigError, match="was not started") as caught:
        await LocalExecutor().play(RolloutJob(group=0, member=0, cache_salt=""))
    assert caught.value.where == 'executor "local"'
