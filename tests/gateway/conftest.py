"""Real engines and real agents on either side of a gateway."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from engines.local import LocalServer, local_server, make_model

from gateway.agents import (
    CONTEXT,
    MINI,
    STEPS,
    Agents,
    ScriptedEngine,
    find_agents,
    make_student,
    make_task,
    said,
    teach,
)
from prl import create_renderer, load_tokenizer
from prl.client import HttpEngineClient
from prl.contracts import EngineClient
from prl.gateway import Gateway, GatewaySettings
from prl.tokenizer import Tokenizer
from prl.types import Turn

Start = Callable[..., Awaitable[tuple[Gateway, str]]]


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
async def gateway_on() -> AsyncIterator[Start]:
    """Start gateways on an engine's client and a model's own renderer; the test ends both."""
    running: list[tuple[Gateway, EngineClient]] = []

    async def start(
        engine: EngineClient, model: Path, settings: GatewaySettings | None = None, **options: Any
    ) -> tuple[Gateway, str]:
        renderer = create_renderer(load_tokenizer(str(model)), "qwen3", **options)
        running.append((Gateway(engine, renderer, model="tiny", settings=settings), engine))
        return running[-1][0], await running[-1][0].start()

    yield start
    for gateway, engine in running:
        await gateway.close()
        await engine.close()


@pytest.fixture(scope="session")
def random_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalServer, Path]]:
    """A tiny random model: what it says is the hardest case for exact tokens."""
    model = make_model(tmp_path_factory.mktemp("random") / "model")
    with local_server(model, max_model_len=1024) as server:
        yield server, model


@pytest.fixture(scope="session")
def agents() -> Agents:
    """Agents from PyPI, in an environment of their own: their pins are not ours."""
    found = find_agents()
    if found is None:
        pytest.skip("no interpreter with mini-swe-agent: run `make agents-env`, or set PRL_AGENTS_PYTHON")
    return found


@pytest.fixture(scope="session")
def taught(agents: Agents, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that plays mini-swe-agent's task, taught on what gateways recorded of scripted rehearsals."""
    home = tmp_path_factory.mktemp("school")
    lines = [said(*step) for step in STEPS]
    student = make_student(home / "student", [MINI, *lines])
    recordings = [rehearse(agents, student, lines, home / name, name) for name in ("", "forgetful")]
    return teach(student, home / "weights", *recordings)


def rehearse(agents: Agents, student: Path, lines: list[str], home: Path, forget: str) -> tuple[Turn, ...]:
    """Let the real agent work against an engine that says the right lines; return what was recorded."""
    tokenizer: Tokenizer = load_tokenizer(str(student))
    home.mkdir(exist_ok=True)

    async def play() -> tuple[Turn, ...]:
        gateway = Gateway(ScriptedEngine(tokenizer, lines), create_renderer(tokenizer, "qwen3"), model="tiny")
        url = await gateway.start()
        session = gateway.open_session()
        task = make_task(home / f"task-{forget}")
        await asyncio.to_thread(agents.run_mini, session, url, task, home, FORGET=forget)
        turns = await session.close()
        await gateway.close()
        return turns

    return asyncio.run(play())


@pytest.fixture(scope="session")
def taught_server(taught: Path) -> Iterator[LocalServer]:
    with local_server(taught, max_model_len=CONTEXT) as server:
        yield server


@pytest.fixture
def connect() -> Callable[[str], EngineClient]:
    return HttpEngineClient
