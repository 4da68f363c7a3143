"""A finished answer as a stream of chunks: joined again they are exactly the message of the whole answer.

The engine answers when a completion is whole, so the stream repeats it; errors come as statuses, before any chunk, but
for those of an answer that took so long that comments had to keep the connection open.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .answer import Completion, finish_reason

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"


def chunks(completion: Completion, characters: int) -> Iterator[dict[str, Any]]:
    """Yield the chunks of every choice, texts cut after `characters`; the usage last, where it was asked for."""
    with_usage = completion.with_usage
    head = completion.head("chat.completion.chunk")
    for index, node in enumerate(completion.nodes):
        for delta in deltas(node.answer, characters):
            yield {**head, **_choice(index, delta), **({"usage": None} if with_usage else {})}
        end = _choice(index, {}, finish=finish_reason(node), logprobs=completion.logprobs(node.turn))
        yield {**head, **end, **({"usage": None} if with_usage else {})}
    if with_usage:
        yield {**head, "choices": [], "usage": completion.usage()}


def deltas(message: Mapping[str, Any], characters: int) -> Iterator[dict[str, Any]]:
    """Yield a message in parts: its role, reasoning, content, then each call's name and its arguments."""
    yield {"role": message["role"], "content": None if message.get("content") is None else ""}
    for name in ("reasoning_content", "content"):
        for text in _cut(message.get(name) or "", characters):
            yield {name: text}
    for index, call in enumerate(message.get("tool_calls") or ()):
        function = call["function"]
        start = {"name": function["name"], "arguments": ""}
        yield {"tool_calls": [{"index": index, "id": call["id"], "type": call["type"], "function": start}]}
        for text in _cut(function["arguments"], characters):
            yield {"tool_calls": [{"index": index, "function": {"arguments": text}}]}


def _choice(index: int, delta: dict[str, Any], *, finish: str | None = None, logprobs: Any = None) -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}]}


def _cut(text: str, characters: int) -> Iterator[str]:
    return (text[start : start + characters] for start in range(0, len(text), characters))
