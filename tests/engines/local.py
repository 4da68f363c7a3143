"""A real local engine of a tiny model with a real chat format, behind HTTP on a free port."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from fixtures.ports import free_port

from prl.plugin import RendererEntry, create, get_registry
from prl_train.models import create_tiny_qwen3, train_small_tokenizer

VOCABULARY = 320
CONTEXT = 96


def make_model(folder: Path, seed: int = 0) -> Path:
    """Write a tiny random model and its tokenizer into a new folder."""
    controls = get_registry().find(RendererEntry, "qwen3").control_tokens
    tokenizer = train_small_tokenizer(["Hello there, how are you?"] * 4, controls, VOCABULARY)
    return create_tiny_qwen3(
        folder,
        tokenizer.to_str(),
        seed=seed,
        hidden_size=32,
        layers=1,
        heads=2,
        intermediate=64,
        initializer_range=0.3,
    )


class LocalServer:
    """The engine's own app on a thread's event loop; it can be stopped, and started again on its port."""

    def __init__(self, model: Path, **options: Any) -> None:
        self._options = {
            "model": str(model),
            "served_model_name": "tiny",
            "chat_template": "qwen3",
            "max_model_len": CONTEXT,
            "threads": 1,
            **options,
        }
        self._socket: socket.socket | None = None
        self.port = free_port()  # of its own also while it is stopped
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Load the model anew, and listen."""
        from prl_engine_local.server import create_app

        self.engine = create("engine", "local", **self._options)
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", self.port))
        asyncio.run(self.engine.start())
        config = uvicorn.Config(
            create_app(self.engine), log_level="error", access_log=False, timeout_graceful_shutdown=1
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]})
        self._thread.start()
        deadline = time.monotonic() + 30
        while not self._server.started:
            assert time.monotonic() < deadline, "the server did not come up"
            time.sleep(0.01)

    def stop(self) -> None:
        """Abort what runs and stop listening."""
        if self._socket is None:
            return
        asyncio.run(self.engine.stop())
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()
        self._socket = None


@contextmanager
def local_server(model: Path, **options: Any) -> Iterator[LocalServer]:
    """Serve a model until the block ends."""
    server = LocalServer(model, **options)
    try:
        yield server
    finally:
        server.stop()
