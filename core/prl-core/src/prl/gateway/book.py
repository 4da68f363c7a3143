"""The turns of a session as a tree: which of them does a request go on from?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prl.types import Message, Turn

from .canonical import history_keys, likeness, reasoning_agrees, tools_key

if TYPE_CHECKING:
    from .body import ChatRequest
    from .session import GatewaySession


@dataclass(eq=False, slots=True, kw_only=True)
class Node:
    """One sampled turn.

    `history` is the conversation up to and including it, with what the model really said: reasoning that a client
    leaves out is kept. `answer` is the message as the client got it, `key` the key of the history with it.
    `followers` counts the requests that go on from here.
    """

    turn: Turn
    history: tuple[Message, ...]
    answer: Message
    key: bytes
    tools: bytes
    session: GatewaySession
    followers: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """What is known of a request: the turn it goes on from, if any, and its whole conversation.

    `new` counts the messages after that turn. `key` is the key of the conversation, `tools` that of its tools.
    """

    node: Node | None
    messages: tuple[Message, ...]
    new: int
    key: bytes
    tools: bytes

    @property
    def extends(self) -> Node | None:
        """The turn whose exact ids may be extended: only messages of others follow it, under the same tools."""
        node = self.node
        if node is None or node.tools != self.tools or not self.new:
            return None
        return None if any(message["role"] == "assistant" for message in self.messages[-self.new :]) else node


class Book:
    """Finds turns by the history that ends with them; one for each place that must not see another's."""

    def __init__(self) -> None:
        self._nodes: defaultdict[bytes, list[Node]] = defaultdict(list)

    def find(self, request: ChatRequest) -> Match:
        """Match the longest prefix that ends with a turn of ours.

        Of equal turns it is the one whose words came back to the letter, then the one least gone on from.
        """
        sent = request.messages
        keys = history_keys(sent)
        node, known = self._longest(sent, keys)
        messages = (*node.history, *sent[known:]) if node else tuple(sent)
        return Match(node=node, messages=messages, new=len(sent) - known, key=keys[-1], tools=tools_key(request.tools))

    def add(self, node: Node) -> None:
        """Remember a turn."""
        self._nodes[node.key].append(node)

    def remove(self, nodes: Sequence[Node]) -> None:
        """Forget turns."""
        for node in nodes:
            left = [other for other in self._nodes[node.key] if other is not node]
            if left:
                self._nodes[node.key] = left
            else:
                del self._nodes[node.key]

    def _longest(self, sent: Sequence[Message], keys: Sequence[bytes]) -> tuple[Node | None, int]:
        for known in range(len(sent), 0, -1):
            if sent[known - 1]["role"] != "assistant":
                continue
            nodes = [n for n in self._nodes.get(keys[known - 1], ()) if reasoning_agrees(sent[:known], n.history)]
            if len(nodes) > 1:
                nodes.sort(key=lambda node: (-likeness(sent[:known], node.history), node.followers))
            if nodes:
                return nodes[0], known
        return None, 0
