"""The body of `/v1/chat/completions`: what is supported, what is harmless, and what is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, cast

import msgspec
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from prl.plugin.options import spelled
from prl.trajectory.json_text import mend_surrogates
from prl.types import Message, SamplingParams, ToolSpec

from .faults import GatewayFault

_Zero = Field(default=None, ge=0, le=0)
_Empty = Field(default=None, max_length=0)
_Text = Annotated[str, Field(min_length=1, max_length=1024)]
_UNSAID = {
    "function_call": "send the call in tool_calls, and its result as a message of role tool",
    "refusal": "send the text as content",
    "audio": "send the text as content",
}
"""Fields of messages that no renderer writes: dropping them would change the conversation without a word."""
_FROM_POLICY = "leave it out: what is trained on is drawn from the policy as it is"
_BY_OPERATOR = "leave it out; whoever runs the gateway sets options of the renderer (prl gateway --option NAME=VALUE)"
_INSTEAD = {
    "top_logprobs": "leave it out; logprobs = true gives the sampled tokens' own, which are all that engines report",
    "response_format": "leave it out, ask for the format in a message, and check what comes back",
    "tool_choice": 'send "auto" or "none", or leave it out; say in a message which tool to call',
    "parallel_tool_calls": "leave it out; a turn holds all calls that the model made in it",
    "reasoning_effort": _BY_OPERATOR,
    "chat_template_kwargs": _BY_OPERATOR,
    "functions": "send tools",
    "function_call": "send tools and tool_choice",
    "stop_token_ids": "send stop, with texts",
    **dict.fromkeys(("frequency_penalty", "presence_penalty", "repetition_penalty", "logit_bias"), _FROM_POLICY),
    **dict.fromkeys(("min_p", "prediction"), _FROM_POLICY),
}
"""What to do without a field, or a value of it, that is not supported."""


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class _StreamOptions(BaseModel):
    model_config = ConfigDict(extra="ignore")

    include_usage: bool | None = None


class _Function(BaseModel):
    model_config = ConfigDict(extra="allow")

    name: str = Field(min_length=1)


class _Tool(BaseModel):
    model_config = ConfigDict(extra="allow")

    type: Literal["function"]
    function: _Function


class _TextFormat(BaseModel):
    model_config = ConfigDict(extra="forbid")

    type: Literal["text"]


class ChatBody(BaseModel):
    """Fields with an effect, fields that may only have their neutral value, and fields that clients send by routine."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str
    messages: list[dict[str, Any]] = Field(min_length=1)
    tools: list[_Tool] | None = None
    tool_choice: Literal["auto", "none"] | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1)
    min_tokens: int | None = Field(default=None, ge=0)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    n: int | None = Field(default=None, ge=1)
    logprobs: bool | None = None
    stop: Annotated[list[_Text] | None, Field(max_length=16), BeforeValidator(_listed)] = None

    top_logprobs: int | None = _Zero
    frequency_penalty: float | None = _Zero
    presence_penalty: float | None = _Zero
    logit_bias: dict[str, float] | None = _Empty
    response_format: _TextFormat | None = None
    modalities: list[Literal["text"]] | None = None
    parallel_tool_calls: Literal[True] | None = None

    user: Any = None
    metadata: Any = None
    store: Any = None
    service_tier: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """A checked request. `sampling` is what the client asks for, before the operator's fields."""

    model: str
    messages: list[Message]
    tools: list[ToolSpec] | None
    sampling: SamplingParams
    may_call: bool = True
    stream: bool = False
    include_usage: bool = False
    logprobs: bool = False
    stop: tuple[str, ...] = ()


def read_body(raw: bytes, *, max_messages: int, max_choices: int) -> ChatRequest:
    """Check a body; raise `GatewayFault` that names the first wrong field."""
    try:
        data = _decode(raw)
        body = ChatBody.model_validate(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise GatewayFault(
            f"the body is not JSON: {error}", fault="invalid_json", next_step="send a JSON object"
        ) from error
    except ValidationError as error:
        raise _field_fault(error) from error
    if len(body.messages) > max_messages:
        raise _too_many(f"{len(body.messages)} messages are more than the {max_messages} allowed", "messages")
    if (body.n or 1) > max_choices:
        raise _too_many(f"n = {body.n} is more than the {max_choices} allowed", "n")
    return ChatRequest(
        model=body.model,
        messages=[_clean(message, index) for index, message in enumerate(body.messages)],
        tools=data.get("tools") or None,
        sampling=_sampling(body),
        may_call=body.tool_choice != "none",
        stream=bool(body.stream),
        include_usage=bool(body.stream_options and body.stream_options.include_usage),
        logprobs=bool(body.logprobs),
        stop=tuple(body.stop or ()),
    )


def _decode(raw: bytes) -> Any:
    """Read JSON; halves of surrogate pairs, which programs leave that cut text anywhere, become U+FFFD."""
    try:
        return msgspec.json.decode(raw)
    except msgspec.DecodeError:
        whole = mend_surrogates(raw)
        if whole == raw:
            raise
        return msgspec.json.decode(whole)


def _sampling(body: ChatBody) -> SamplingParams:
    limits = [limit for limit in (body.max_completion_tokens, body.max_tokens) if limit is not None]
    return SamplingParams(
        max_tokens=min(limits) if limits else None,
        min_tokens=body.min_tokens or 0,
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        top_k=body.top_k or -1,
        n=body.n or 1,
        seed=body.seed,
    )


def _clean(message: Mapping[str, Any], index: int) -> Message:
    """Return a message without the nulls that SDKs write (`refusal`, `audio`, `function_call`, ...)."""
    for name, next_step in _UNSAID.items():
        if message.get(name) is not None:
            raise _unsaid(f"messages[{index}].{name}", next_step)
    if message.get("role") == "function":
        raise _unsaid(f"messages[{index}].role function", "send role tool, with the tool_call_id")
    return cast(Message, {name: value for name, value in message.items() if value is not None})


def _unsaid(what: str, next_step: str) -> GatewayFault:
    param = what.partition(" ")[0]
    return GatewayFault(f"{what} is not supported", fault="invalid_value", param=param, next_step=next_step)


def _field_fault(error: ValidationError) -> GatewayFault:
    first = error.errors(include_url=False, include_context=False)[0]
    param = spelled(tuple(first["loc"])) or None
    instead = _INSTEAD.get(str(first["loc"][0])) if first["loc"] else None
    if instead is not None:
        value = "" if first["type"] == "extra_forbidden" else " with this value"
        what, next_step = f"{param} is not supported{value}", instead
    elif first["type"] == "extra_forbidden":
        what, next_step = f"{param} is not supported", f"leave out {param}"
    else:
        message = first["msg"][:1].lower() + first["msg"][1:]
        what = f"{param or 'the body'}: {message}"
        next_step = f"correct or leave out {param}" if param else "send a JSON object"
    return GatewayFault(what, fault="invalid_value", param=param, next_step=next_step)


def _too_many(what: str, param: str) -> GatewayFault:
    return GatewayFault(what, fault="too_many", param=param, next_step="send fewer, or raise the gateway's limit")
