"""Answers in OpenAI form."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from prl.types import UNPUBLISHED, Message, ParsedToolCall, Turn, arguments_json

if TYPE_CHECKING:
    from .body import ChatRequest
    from .book import Node

Decode = Callable[[list[int]], str]
REPLACEMENT = "�"


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """The answer to one request; repeated as it is where a client asks again for the same.

    Many are kept, so it holds nothing of the request's messages.
    """

    model: str
    nodes: Sequence[Node]
    with_usage: bool = False
    with_logprobs: bool = False
    decode: Decode | None = None
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    @classmethod
    def of(cls, request: ChatRequest, nodes: Sequence[Node], decode: Decode | None) -> Completion:
        """Return the answer that a request asked for."""
        usage, logprobs = request.include_usage, request.logprobs
        return cls(model=request.model, nodes=nodes, with_usage=usage, with_logprobs=logprobs, decode=decode)

    def head(self, kind: str) -> dict[str, Any]:
        """Return the fields that the answer and each of its chunks begin with."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": _fingerprint(self.nodes[0].turn.weight_version),
        }

    def body(self) -> dict[str, Any]:
        """Return the whole answer."""
        choices = [
            {
                "index": index,
                "message": dict(node.answer),
                "logprobs": self.logprobs(node.turn),
                "finish_reason": finish_reason(node),
            }
            for index, node in enumerate(self.nodes)
        ]
        return {**self.head("chat.completion"), "choices": choices, "usage": self.usage()}

    def usage(self) -> dict[str, int]:
        """Return what was sent and sampled, in tokens."""
        prompt = len(self.nodes[0].turn.prompt_ids)
        sampled = sum(len(node.turn.completion_ids) for node in self.nodes)
        return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}

    def logprobs(self, turn: Turn) -> dict[str, Any] | None:
        """Return the sampled tokens' log-probabilities, where they were asked for."""
        if not self.with_logprobs:
            return None
        rows = zip(turn.completion_ids, turn.logprobs or (), strict=True)
        return {"content": [self._token(token, value) for token, value in rows], "refusal": None}

    def _token(self, token: int, value: float) -> dict[str, Any]:
        text = self.decode([token]) if self.decode else REPLACEMENT
        whole = REPLACEMENT not in text  # a token may be a part of a character only: then its id stands for it
        return {
            "token": text if whole else f"token_id:{token}",
            "logprob": value,
            "bytes": list(text.encode()) if whole else None,
            "top_logprobs": [],
        }


def finish_reason(node: Node) -> str:
    """Return "tool_calls" where the model stopped to wait for a tool; else the engine's reason."""
    is_call = node.turn.finish_reason == "stop" and bool(node.answer.get("tool_calls"))
    return "tool_calls" if is_call else node.turn.finish_reason


def answered(turn: Turn, decode: Decode | None, *, may_call: bool) -> Message:
    """Return the assistant message as the client gets it: arguments as JSON text, empty content of a call as null.

    Without `may_call` the text of a call is content, as the client asked to get no calls.
    """
    message = dict(turn.message)
    calls = turn.parsed.tool_calls if turn.parsed is not None else ()
    message.pop("tool_calls", None)
    if calls and may_call:
        message["content"] = message["content"] or None
        message["tool_calls"] = [_wire_call(call) for call in calls]
    elif calls:
        message["content"] = f"{message['content']}{_spelled(turn, calls, decode)}"
    return cast(Message, message)


def _fingerprint(version: int) -> str:
    return "weights-unpublished" if version == UNPUBLISHED else f"weights-{version}"


def _wire_call(call: ParsedToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments_json(call)}}


def _spelled(turn: Turn, calls: Sequence[ParsedToolCall], decode: Decode | None) -> str:
    """Return the text of calls as the model wrote it; as JSON where the renderer has no tokenizer to read it with."""
    if decode is None:
        return "".join(f'{{"name": "{call.name}", "arguments": {arguments_json(call)}}}' for call in calls)
    spans = dict.fromkeys(call.span for call in calls)  # several calls may share one region
    return "".join(decode(turn.completion_ids[start:end]) for start, end in spans)
