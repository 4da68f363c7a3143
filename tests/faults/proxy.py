"""A TCP proxy between the orchestrator and an engine that spoils the answers to generate requests, one fault each."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from types import TracebackType

Fault = Callable[[asyncio.StreamWriter, bytes], Awaitable[None]]
"""Gets the client's connection and the engine's whole body; writes what the client sees instead."""


def answer(body: bytes, status: str = "200 OK", kind: str = "application/json") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


async def fine(writer: asyncio.StreamWriter, body: bytes) -> None:
    writer.write(answer(body))


async def reset(writer: asyncio.StreamWriter, body: bytes) -> None:
    """Break the connection in the middle of the answer."""
    writer.write(answer(body)[: -len(body) // 2])
    await writer.drain()
    writer.transport.abort()


async def truncated(writer: asyncio.StreamWriter, body: bytes) -> None:
    """Send half a JSON document as if it were whole."""
    writer.write(answer(body[: len(body) // 2]))


async def short_by_one(writer: asyncio.StreamWriter, body: bytes) -> None:
    """Drop one log-probability: zeros filled in, or values shifted, would train on wrong numbers."""
    content = json.loads(body)
    del content["choices"][0]["logprobs"][0]
    writer.write(answer(json.dumps(content).encode()))


async def other_prompt(writer: asyncio.StreamWriter, body: bytes) -> None:
    """Answer for a prompt that was not sent, as a proxy that mixes up two answers does."""
    content = json.loads(body)
    content["prompt_token_ids"] = content["prompt_token_ids"][:-1]
    writer.write(answer(json.dumps(content).encode()))


async def bad_gateway(writer: asyncio.StreamWriter, body: bytes) -> None:
    writer.write(answer(b"<html><h1>502 Bad Gateway</h1></html>", "502 Bad Gateway", "text/html"))


async def web_page(writer: asyncio.StreamWriter, body: bytes) -> None:
    """Send a page with status 200, as a captive portal does."""
    writer.write(answer(b"<html>Please log in</html>", kind="text/html"))


async def swallowed(writer: asyncio.StreamWriter, body: bytes) -> None:
    """Send nothing and keep the connection open."""
    await asyncio.sleep(3600)


FAULTS: tuple[Fault, ...] = (reset, truncated, short_by_one, other_prompt, bad_gateway, web_page, swallowed)


class FaultProxy:
    """Listens on a port of its own in a thread; `faults` are taken one a generate answer."""

    def __init__(self, target: int) -> None:
        self.faults: list[Fault] = []
        self.port = 0
        self._target = target
        self._loop = asyncio.new_event_loop()
        self._listening = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),), daemon=True)

    def __enter__(self) -> FaultProxy:
        self._thread.start()
        assert self._listening.wait(10)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(10)

    async def _serve(self) -> None:
        self._end = asyncio.Event()
        self._handlers: set[asyncio.Task[None]] = set()
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=1 << 24)
        self.port = server.sockets[0].getsockname()[1]
        self._listening.set()
        await self._end.wait()
        server.close()
        for handler in self._handlers:
            handler.cancel()
        await asyncio.gather(*self._handlers, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._relay(reader, writer))
        self._handlers.add(task)
        task.add_done_callback(self._handlers.discard)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass requests on, one at a time; a dead engine is a closed connection for the client as well."""
        engine: asyncio.StreamWriter | None = None
        try:
            source, engine = await asyncio.open_connection("127.0.0.1", self._target, limit=1 << 24)
            while True:
                request, _ = await read_message(reader)
                engine.write(request)
                response, body = await read_message(source)
                if request.startswith(b"POST /v1/generate ") and self.faults:
                    await self.faults.pop(0)(writer, body)
                else:
                    writer.write(response)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            writer.transport.abort()
        finally:
            if engine is not None:
                engine.transport.abort()
            writer.transport.abort()


async def read_message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Return one whole HTTP message, and its body."""
    head = await reader.readuntil(b"\r\n\r\n")
    sizes = [line.split(b":")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
    body = await reader.readexactly(int(sizes[0])) if sizes else b""
    return head + body, body
