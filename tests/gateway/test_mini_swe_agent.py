"""mini-swe-agent from PyPI repairs a program through the gateway, on a tiny model behind real engines.

The model is taught on what a gateway recorded while a script stood in for the engine, and then does the task by itself.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from engines.local import LocalServer
from fixtures.environments import ROOT
from fixtures.ports import free_port

from gateway.agents import CONTEXT, Agents, check_passes, make_task
from prl import load_tokenizer
from prl.client import HttpEngineClient
from prl.gateway import Gateway
from prl.trajectory import InterleaveResult, interleave_rollout
from prl.types import BreakCause, GenerateRequest, Rollout, SamplingParams

pytestmark = pytest.mark.heavy
Played = tuple[Rollout, InterleaveResult]
START_SECONDS = 240.0
QUIET = {"TORCHDYNAMO_DISABLE": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
COMMAND = "prl.cli.main serve --engine vllm --dtype float32 --enforce-eager true --cpu-cache-gib 1"


@pytest.fixture(scope="module")
def vllm_url(taught: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real vLLM that serves the model that was taught; ended by its process id."""
    python = os.environ.get("PRL_VLLM_PYTHON") or str(ROOT / ".venv-vllm" / "bin" / "python")
    look = "import importlib.util as u, sys; sys.exit(u.find_spec('vllm') is None)"
    if not Path(python).exists() or subprocess.run([python, "-c", look], check=False, timeout=60).returncode:
        pytest.skip(f"{python} cannot import vllm: run `make vllm-env`, or set PRL_VLLM_PYTHON")
    port = free_port()
    log = tmp_path_factory.mktemp("vllm") / "serve.log"
    words = [python, "-m", *COMMAND.split(), "--model", str(taught), "--served-model-name", "tiny"]
    words += ["--port", str(port), "--max-model-len", str(CONTEXT)]
    with log.open("wb") as out:
        server = subprocess.Popen(words, stdout=out, stderr=out, env={**os.environ, **QUIET})
    try:
        deadline = time.monotonic() + START_SECONDS
        while b"serving 'tiny' at " not in log.read_bytes():
            assert server.poll() is None, log.read_text(errors="replace")[-6000:]
            assert time.monotonic() < deadline, log.read_text(errors="replace")[-6000:]
            time.sleep(0.25)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)


@pytest.fixture
def work(agents: Agents, taught: Path, gateway_on: Any, tmp_path: Path) -> Callable[..., Any]:
    """Let the agent do the task twice at once, as it is and forgetful; return each one's rollout and its samples."""

    async def run(url: str) -> tuple[Played, Played]:
        gateway, base_url = await gateway_on(HttpEngineClient(url), taught)
        plain, forgetful = await asyncio.gather(*(play(gateway, base_url, name) for name in ("", "forgetful")))
        return plain, forgetful

    async def play(gateway: Gateway, base_url: str, forget: str) -> Played:
        session = gateway.open_session()
        home = tmp_path / f"home-{forget}"
        home.mkdir()
        task = make_task(home / "task")
        assert not check_passes(task)
        said = await asyncio.to_thread(agents.run_mini, session, base_url, task, home, FORGET=forget)
        ended = json.loads(said.strip().splitlines()[-1])
        assert ended == {"result": {"exit_status": "Submitted", "submission": ""}, "calls": 4}
        assert check_passes(task), "the agent said that it is done, and the program is still wrong"
        turns = await session.close()
        rollout = Rollout(trajectory_id=session.id, turns=turns, reward=1.0, messages=session.messages)
        return rollout, interleave_rollout(rollout, decode=load_tokenizer(str(taught)).decode)

    return run


def check_append_only(played: Played) -> None:
    """Four turns, one sample, no break: each sampled token of the rollout is trained once."""
    rollout, result = played
    roles = [message["role"] for message in rollout.messages]
    assert roles == ["system", "user", *["assistant", "tool"] * 3, "assistant"]
    assert (len(rollout.turns), len(result.samples), result.breaks) == (4, 1, [])
    assert sum(result.samples[0].completion_mask) == sum(len(turn.completion_ids) for turn in rollout.turns)


def check_rewritten(played: Played, taught: Path) -> None:
    """Before its last request it cut old tool output away: one break, at that turn and token, named for what it is."""
    rollout, result = played
    [broken] = result.breaks
    assert (broken.turn, broken.cause, result.turns) == (3, BreakCause.HISTORY_REWRITTEN, [[0, 1, 2], [3]])
    before = load_tokenizer(str(taught)).decode(rollout.turns[3].prompt_ids[: broken.position])
    assert before.rstrip().endswith("<tool_response>")


async def check_exact(url: str, played: Played) -> None:
    """The engine gives the recorded tokens, in their place, the probabilities of a model that says exactly these."""
    engine = HttpEngineClient(url)
    for sample in played[1].samples:
        ids = sample.prompt_ids + sample.completion_ids
        sampling = SamplingParams(max_tokens=1)
        answer = await engine.generate(
            GenerateRequest(model="tiny", prompt_token_ids=ids, sampling=sampling, prompt_logprobs=True)
        )
        assert answer.prompt_logprobs is not None
        scored = answer.prompt_logprobs[len(sample.prompt_ids) :]
        sampled = [value for value, is_sampled in zip(scored, sample.completion_mask, strict=True) if is_sampled]
        assert min(value for value in sampled if value is not None) > -0.7  # the likeliest token, each time
    await engine.close()


async def test_on_the_local_engine(work: Callable[..., Any], taught: Path, taught_server: LocalServer) -> None:
    plain, forgetful = await work(taught_server.url)
    check_append_only(plain)
    check_rewritten(forgetful, taught)
    await check_exact(taught_server.url, plain)


async def test_on_vllm(work: Callable[..., Any], taught: Path, vllm_url: str) -> None:
    """The engine that runs are made with."""
    plain, forgetful = await work(vllm_url)
    check_append_only(plain)
    check_rewritten(forgetful, taught)
    await check_exact(vllm_url, plain)
