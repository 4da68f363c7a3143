"""A tiny random Qwen3 model, engines in this process, and a real HTTP server on a free port."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import uvicorn

from prl_engine_local.engine import LocalEngine, create
from prl_engine_local.options import LocalEngineOptions
from prl_engine_local.server import create_app

VOCABULARY = 600
CONTEXT = 256


def build_model(seed: int = 0, **changes: Any) -> Any:
    """Return a random Qwen3 whose distributions are far from uniform, so that a wrong mask shows."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    fields: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": CONTEXT,
        "tie_word_embeddings": True,
        "initializer_range": 0.15,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    return Qwen3ForCausalLM(Qwen3Config(**fields | changes)).eval()


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A saved tiny model with tied embeddings."""
    path = tmp_path_factory.mktemp("model")
    build_model().save_pretrained(path)
    return str(path)


@pytest.fixture(scope="session")
def plain_model(model_dir: str) -> Any:
    """The same model, loaded by transformers alone: the oracle."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()


def plain_logprobs(model: Any, ids: list[int], temperature: float = 1.0) -> list[float]:
    """Return log p(ids[i] | ids[:i]) for i >= 1, from one uncached forward pass of `ids` alone."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, :-1].float() / temperature
    return torch.log_softmax(logits, -1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()


@pytest.fixture
async def make_engine(model_dir: str) -> AsyncIterator[Callable[..., Any]]:
    """Start engines in this process; they are stopped at the end of the test."""
    engines: list[LocalEngine] = []

    async def make(**options: Any) -> LocalEngine:
        engine = create(LocalEngineOptions(**{"model": model_dir, "served_model_name": "tiny"} | options))
        await engine.start()
        engines.append(engine)
        return engine

    yield make
    for engine in engines:
        await engine.stop()


class Server:
    """A uvicorn server in a thread."""

    def __init__(self, engine: LocalEngine) -> None:
        self.engine = engine
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._server = uvicorn.Server(uvicorn.Config(create_app(engine), log_level="error", access_log=False))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]})
        self._thread.start()
        deadline = time.monotonic() + 20
        while not self._server.started and time.monotonic() < deadline:
            time.sleep(0.01)

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()


@pytest.fixture
def serve() -> Iterator[Callable[[LocalEngine], Server]]:
    """Put engines behind real HTTP."""
    servers: list[Server] = []

    def start(engine: LocalEngine) -> Server:
        servers.append(Server(engine))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait for a condition that another thread brings about."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition never came true"
        await asyncio.sleep(0.005)


@pytest.fixture
def slow_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every decode step take 10 ms, so that a test can act while a request surely runs."""
    from prl_engine_local.runner import ModelRunner

    original = ModelRunner.decode

    def slowed(self: ModelRunner, tokens: Any, positions: Any) -> Any:
        time.sleep(0.01)
        return original(self, tokens, positions)

    monkeypatch.setattr(ModelRunner, "decode", slowed)


@pytest.fixture
def wait_until() -> Callable[..., Any]:
    return until


@pytest.fixture
def logprobs_of() -> Callable[..., list[float]]:
    return plain_logprobs


@pytest.fixture
def new_model() -> Callable[..., Any]:
    return build_model


@pytest.fixture
def save(tmp_path: Path) -> Callable[..., str]:
    """Save a model's weights below a new directory, whole or in shards."""

    def write(model: Any, name: str, **options: Any) -> str:
        path = tmp_path / name
        model.save_pretrained(path, **options)
        return str(path)

    return write
