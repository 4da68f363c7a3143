"""One rollout's conversation in the `chat` mode: the server renders each turn and tells the ids it used."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from prl.contracts import EngineClient, Renderer
from prl.types import (
    InvalidToolCall,
    MalformedResponseError,
    Message,
    ParsedResponse,
    ParsedToolCall,
    SamplingParams,
    ToolSpec,
    Turn,
    next_prompt,
)

from . import wire
from .experts import read_routing
from .session import check_single, turn_seed

ROUTE = "/v1/chat/completions"
CALLED = "tool_calls"
"""How servers say that a turn with calls ended by itself."""


class _Entry(msgspec.Struct):
    logprob: float


class _Logprobs(msgspec.Struct):
    content: list[_Entry] | None = None


class _Function(msgspec.Struct):
    name: str
    arguments: str | dict[str, Any] | None = None


class _Call(msgspec.Struct):
    function: _Function
    id: str | None = None


class _Said(msgspec.Struct):
    """What is read of a message: of other types, it would be found out when the next turn sends it back."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_Call] | None = None


class ChatChoice(msgspec.Struct):
    """One completion of a chat answer."""

    message: dict[str, Any]
    finish_reason: str
    token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None
    routed_experts: Any = None


class ChatAnswer(msgspec.Struct):
    """A chat completion as any OpenAI-compatible server sends it; ids and weights where it names them."""

    choices: list[ChatChoice]
    prompt_token_ids: list[int] | None = None
    weight_version: int | None = None


class ChatModeSession:
    """Sends the whole conversation each turn. What the server renders differently from before shows as a break."""

    def __init__(
        self,
        engine: EngineClient,
        renderer: Renderer | None,
        *,
        model: str,
        tools: Sequence[ToolSpec] | None,
        cache_salt: str | None,
        seed: int | None,
        weight_version: int | None,
        extra_body: Mapping[str, object],
    ) -> None:
        self.messages: list[Message] = []
        self._engine = engine
        self._renderer = renderer
        self._model = model
        self._tools = tools
        self._salt = cache_salt
        self._seed = seed
        self._version = weight_version
        self._extra = extra_body
        self._turns = 0
        self._last: Turn | None = None

    async def turn(self, new_messages: Sequence[Message], sampling: SamplingParams) -> Turn:
        """Append messages, sample one assistant turn, append it; on any error the session is as before."""
        check_single(sampling)
        conversation = [*self.messages, *new_messages]
        answer = await self._ask(conversation, self._body(conversation, sampling))
        turn = self._turn(read_answer(answer), sampling.temperature)
        self.messages = [*conversation, turn.message]
        self._turns += 1
        self._last = turn
        return turn

    async def _ask(self, conversation: Sequence[Message], body: dict[str, Any]) -> dict[str, Any]:
        """Have the server render the whole conversation and sample."""
        return await self._engine.chat(body)

    def _body(self, conversation: Sequence[Message], sampling: SamplingParams) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._model,
            "messages": [wire_message(message) for message in conversation],
            "tools": list(self._tools) if self._tools else None,
            "max_tokens": sampling.max_tokens,
            "min_tokens": sampling.min_tokens or None,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p if sampling.top_p != 1.0 else None,
            "top_k": sampling.top_k if sampling.top_k > 0 else None,
            "seed": turn_seed(sampling.seed, self._seed, self._turns),
            "stop_token_ids": list(sampling.stop_token_ids) or None,
            "cache_salt": self._salt,
            "logprobs": True,
            "return_token_ids": True,
        }
        return {name: value for name, value in body.items() if value is not None} | dict(self._extra)

    def _turn(self, answer: ChatAnswer, temperature: float) -> Turn:
        if len(answer.choices) != 1:
            raise wire.malformed(f"one completion was asked for, {len(answer.choices)} came", ROUTE)
        choice = answer.choices[0]
        finish = "stop" if choice.finish_reason == CALLED else choice.finish_reason
        wire.check_finish(finish, len(choice.token_ids or ()), "choices[0]", ROUTE)
        if answer.prompt_token_ids is None or choice.token_ids is None:
            raise MalformedResponseError(
                "the answer names no token ids",
                where=ROUTE,
                next_step='use a server that knows return_token_ids, or client_mode = "renderer"',
            )
        entries = choice.logprobs.content if choice.logprobs is not None else None
        logprobs = [entry.logprob for entry in entries or ()]
        wire.check_tokens(choice.token_ids, logprobs, "choices[0]", ROUTE)
        parsed = self._parsed(choice, answer.prompt_token_ids)
        before = ((), ()) if self._last is None else (self._last.prompt_ids, self._last.completion_ids)
        return Turn(
            prompt_ids=next_prompt(answer.prompt_token_ids, *before),
            completion_ids=choice.token_ids,
            logprobs=logprobs,
            finish_reason=finish,
            weight_version=self._weight_version(answer),
            message=said_message(choice.message),
            parsed=parsed,
            temperature=temperature,
            routed_experts=read_routing(choice.routed_experts, "choices[0]", ROUTE),
        )

    def _parsed(self, choice: ChatChoice, prompt_ids: Sequence[int]) -> ParsedResponse:
        if self._renderer is not None:
            return self._renderer.parse_response(choice.token_ids or [], tools=self._tools, prompt_ids=prompt_ids)
        return parse_message(choice.message)

    def _weight_version(self, answer: ChatAnswer) -> int:
        version = answer.weight_version if answer.weight_version is not None else self._version
        if version is None:
            raise MalformedResponseError(
                "the answer does not say which weights it was sampled with",
                where=ROUTE,
                next_step="set weight_version in the options of the chat mode, for a server whose weights never change",
            )
        return version


def wire_message(message: Message) -> dict[str, Any]:
    """Return a message in OpenAI wire form: arguments of tool calls as JSON strings. The caller's is not touched."""
    out: dict[str, Any] = dict(message)
    if calls := message.get("tool_calls"):
        out["tool_calls"] = [
            {"type": "function", **call, "function": {**call["function"], "arguments": _text(call["function"])}}
            for call in calls
        ]
    return out


def parse_message(message: Mapping[str, Any]) -> ParsedResponse:
    """Read a server-parsed message; a call whose arguments are no JSON object is kept as an invalid call."""
    good: list[ParsedToolCall] = []
    bad: list[InvalidToolCall] = []
    for index, call in enumerate(message.get("tool_calls") or ()):
        function = call.get("function") or {}
        raw = function.get("arguments") or "{}"
        try:
            arguments = json.loads(raw) if isinstance(raw, str) else raw
        except (ValueError, RecursionError) as error:
            bad.append(InvalidToolCall(raw=str(raw), error=f"arguments are not JSON: {error}"))
            continue
        if not isinstance(arguments, dict):
            bad.append(InvalidToolCall(raw=str(raw), error="arguments are not a JSON object"))
            continue
        good.append(ParsedToolCall(str(call.get("id") or f"call_{index}"), str(function.get("name", "")), arguments))
    return ParsedResponse(
        content=message.get("content") or "",
        reasoning_content=message.get("reasoning_content") or message.get("reasoning"),
        tool_calls=tuple(good),
        invalid_tool_calls=tuple(bad),
    )


def said_message(sent: Mapping[str, Any]) -> Message:
    """Keep what the server said, without the nulls some servers send for absent fields."""
    message: Message = {"role": "assistant", "content": sent.get("content") or ""}
    if reasoning := sent.get("reasoning_content") or sent.get("reasoning"):
        message["reasoning_content"] = reasoning
    if calls := sent.get("tool_calls"):
        message["tool_calls"] = calls
    return message


def read_answer(answer: Mapping[str, Any]) -> ChatAnswer:
    """Return a checked chat answer; raise `MalformedResponseError` for anything else."""
    try:
        found = msgspec.convert(answer, ChatAnswer)
        for choice in found.choices:
            msgspec.convert(choice.message, _Said)
        return found
    except msgspec.ValidationError as error:
        raise wire.malformed(f"the answer is not a chat completion: {error}", ROUTE) from error


def _text(function: Mapping[str, Any]) -> str:
    arguments = function["arguments"]
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
