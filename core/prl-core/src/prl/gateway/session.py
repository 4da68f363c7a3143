"""A session: what one key, or one name under a key, asked and was answered."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from prl.client.rollout import rollout_client
from prl.contracts import EngineClient
from prl.types import Message, ToolSpec, Turn

from .body import ChatRequest
from .book import Book, Match, Node
from .faults import session_closed
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
        *,
        name: str = "",
        api_key: str = "",
        sampling: Sampling | None = None,
        on_close: Callable[[GatewaySession], None] = lambda session: None,
    ) -> None:
        self.id = uuid.uuid4().hex
        self.name = name
        self.api_key = api_key
        self.created = time.time()
        self.tools: list[ToolSpec] | None = None
        self._engine = rollout_client(engine)
        self._sampler = sampler
        self._book = book
        self._sampling = sampling or Sampling()
        self._on_close = on_close
        self._nodes: list[Node] = []
        self._running: set[asyncio.Task[Any]] = set()
        self._asked = 0
        self._used = time.monotonic()
        self._closed = False

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

    async def complete(self, request: ChatRequest, match: Match) -> list[Node]:
        """Sample the answers to one request and record each as a turn; nothing is recorded where that fails."""
        if self._closed:
            raise session_closed()
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        number, self._asked = self._asked, self._asked + 1
        try:
            nodes = await self._follow(
                match.node, lambda: self._sampler.sample(self, self._engine, request, match, self._sampling, number)
            )
        finally:
            self._running.discard(task)
            self._used = time.monotonic()
        self._record(nodes, request)
        return nodes

    async def close(self) -> tuple[Turn, ...]:
        """Take no more requests, abort those that run, forget the key; return the finished turns."""
        if not self._closed:
            self._closed = True
            self._on_close(self)
            self._book.remove(self._nodes)
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        return self.turns

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

    def _record(self, nodes: list[Node], request: ChatRequest) -> None:
        if self._closed:
            raise session_closed()
        self.tools = request.tools or self.tools
        self._nodes.extend(nodes)
        for node in nodes:
            self._book.add(node)
