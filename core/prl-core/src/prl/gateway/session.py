"""A session: what one key, or one name under a key, asked and was answered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from prl.client.rollout import rollout_client
from prl.contracts import EngineClient
from prl.types import Message, ToolSpec, Turn

from .body import ChatRequest
from .book import Book, Match, Node
from .faults import GatewayFault, restarting, session_closed
from .journal import Delivered, Head, Sampled, SessionFile
from .replay import Replay, sampled_line
from .retries import Asked, RequestKey, Retries
from .sampler import Sampler, Sampling


class GatewaySession:
    """One rollout's view of the model. `api_key` is its own secret; "" where the session belongs to a shared key.

    `turns` are the finished turns in the order in which they ended.
    """

    def __init__(
        self,
        engine: EngineClient,
        sampler: Sampler,
        book: Book,
        head: Head,
        *,
        file: SessionFile | None = None,
        api_key: str = "",
        sampling: Sampling | None = None,
        on_close: Callable[[GatewaySession], None] = lambda session: None,
    ) -> None:
        self.id = head.id
        self.name = head.name
        self.created = head.started
        self.api_key = api_key
        self.file = file
        self.tools: list[ToolSpec] | None = None
        self._engine = rollout_client(engine)
        self._sampler = sampler
        self._book = book
        self._sampling = sampling or Sampling()
        self._on_close = on_close
        self._nodes: list[Node] = []
        self._running: set[Asked] = set()
        self._keeping = asyncio.Lock()
        self._notes: set[asyncio.Task[Any]] = set()
        self._asked = 0
        self._used = time.monotonic()
        self._closed = False
        self._fault = session_closed

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The finished turns, in order."""
        return tuple(node.turn for node in self._nodes)

    @property
    def messages(self) -> tuple[Message, ...]:
        """The longest conversation that was seen, answers included; of equally long ones the last."""
        longest = max(enumerate(self._nodes), key=lambda one: (len(one[1].history), one[0]), default=None)
        return longest[1].history if longest else ()

    @property
    def is_closed(self) -> bool:
        """Whether it takes no more requests."""
        return self._closed

    def is_idle(self, seconds: float) -> bool:
        """Whether nothing runs, and nothing was asked for so long."""
        return not self._running and time.monotonic() - self._used >= seconds

    async def complete(self, request: ChatRequest, match: Match, asked: Asked) -> list[Node]:
        """Sample the answers to one request and record each as a turn; nothing is recorded where that fails.

        They are in the session's file before this returns.
        """
        if self._closed:
            raise self._fault()
        self._running.add(asked)
        number, self._asked = self._asked, self._asked + 1
        try:
            return await self._follow(match.node, lambda: self._answer(request, match, number, asked))
        finally:
            self._running.discard(asked)
            self._used = time.monotonic()

    def restore(self, lines: Sequence[Sampled | Delivered], retries: Retries) -> None:
        """Take up what an earlier process wrote to the session's file."""
        replay = Replay(self, self._sampler)
        for line in lines:
            if isinstance(line, Delivered):
                retries.delivered(line.name)
                continue
            match, nodes = replay.read(line)
            if match.node is not None:
                match.node.followers += 1
            self._remember(nodes, replay.tools)
            self._asked = max(self._asked, line.number + 1)
            retries.restore(RequestKey(line.name, line.fingerprint, False), replay.answer(line, nodes))

    def delivered(self, asked: Asked) -> None:
        """Take note that an answer went out whole; nobody waits for it."""
        if self.file is not None and not self._closed:
            task = asyncio.create_task(self._note(self.file, asked.key.name))
            self._notes.add(task)
            task.add_done_callback(self._notes.discard)

    async def close(self) -> tuple[Turn, ...]:
        """Take no more requests, abort those that run, forget the key; return the finished turns."""
        if not self._closed:
            self._closed = True
            self._on_close(self)
            self._book.remove(self._nodes)
        await self._abort(session_closed)
        return self.turns

    async def leave(self) -> None:
        """Take no more requests, abort those that run; the next gateway goes on with what is in the file."""
        self._closed = True
        self._fault = restarting
        await self._abort(restarting)

    async def _abort(self, fault: Callable[[], GatewayFault]) -> None:
        running = list(self._running)
        for asked in running:
            asked.abort(fault)
        await asyncio.gather(*(asked.task for asked in running), *self._notes, return_exceptions=True)

    def drop_if_unused(self) -> None:
        """Leave nothing behind of a session whose requests all failed; one with a key of its own stays open."""
        if not (self.api_key or self._nodes or self._running or self._closed):
            self._closed = True
            self._on_close(self)

    async def _follow(self, node: Node | None, work: Callable[[], Awaitable[list[Node]]]) -> list[Node]:
        """Count a request that goes on from a turn; one that fails has not."""
        if node is None:
            return await work()
        node.followers += 1
        try:
            return await work()
        except BaseException:
            node.followers -= 1
            raise

    async def _answer(self, request: ChatRequest, match: Match, number: int, asked: Asked) -> list[Node]:
        nodes = await self._sampler.sample(self, self._engine, request, match, self._sampling, number)
        if self._closed:
            raise self._fault()
        asked.is_kept = True  # from here on it is recorded, whoever goes away
        async with self._keeping:
            if self.file is not None:
                earlier = self._nodes
                await self.file.sampled(lambda: sampled_line(number, request, match, nodes, earlier, asked.key))
            self._remember(nodes, request.tools)
        return nodes

    def _remember(self, nodes: Sequence[Node], tools: list[ToolSpec] | None) -> None:
        self.tools = tools or self.tools
        self._nodes.extend(nodes)
        for node in nodes:
            if not self._closed:
                self._book.add(node)

    async def _note(self, file: SessionFile, name: bytes) -> None:
        async with self._keeping:
            if not self._closed:
                await file.delivered(name)
