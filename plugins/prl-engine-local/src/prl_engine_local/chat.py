"""`/v1/chat/completions`: the engine renders the prompt, samples, and parses the answer (messages in, tokens out)."""

from __future__ import annotations

import asyncio
import json
import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from jinja2 import TemplateError

from prl.contracts import Renderer
from prl.types import ConfigError, GenerateChoice, GenerateRequest, GenerateResponse, Message, RenderError, ToolSpec

from .options import LocalEngineOptions
from .schemas import ChatBody, TokenizeBody

if TYPE_CHECKING:
    from .engine import LocalEngine


_TEMPLATE_FAULTS = (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError)
"""What a template may raise, which is a program of its vendor's, over messages that it does not expect."""


class ChatFormat(Protocol):
    """How this model's chats become ids and its ids become messages."""

    stop_token_ids: Sequence[int]

    def prompt_ids(self, messages: list[Message], tools: list[ToolSpec] | None, *, generate: bool = True) -> list[int]:
        """Render the conversation, with a generation prompt where one is wanted."""
        ...

    def message(self, ids: list[int], prompt_ids: Sequence[int], tools: list[ToolSpec] | None) -> dict[str, Any]:
        """Return the assistant message, in OpenAI wire form."""
        ...


class RendererFormat:
    """The format of a prl renderer: reasoning and tool calls are parsed."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self.stop_token_ids: Sequence[int] = renderer.get_stop_token_ids()

    def prompt_ids(self, messages: list[Message], tools: list[ToolSpec] | None, *, generate: bool = True) -> list[int]:
        """Render the conversation, with a generation prompt where one is wanted."""
        return self._renderer.render_ids(messages, tools=tools, add_generation_prompt=generate)

    def message(self, ids: list[int], prompt_ids: Sequence[int], tools: list[ToolSpec] | None) -> dict[str, Any]:
        """Return the assistant message; arguments of tool calls are JSON strings, invalid calls stay in the content."""
        message: dict[str, Any] = dict(
            self._renderer.parse_response(ids, tools=tools, prompt_ids=prompt_ids).to_message()
        )
        message["tool_calls"] = [
            {**call, "function": {**call["function"], "arguments": _json(call["function"]["arguments"])}}
            for call in message.get("tool_calls") or ()
        ]
        if not message["tool_calls"]:
            del message["tool_calls"]
        return message


class TemplateFormat:
    """The tokenizer's own chat template; the answer is plain text."""

    def __init__(self, model: str, stop_token_ids: Sequence[int], *, trust_remote_code: bool = False) -> None:
        import transformers

        try:  # trust is said, so that nobody is asked at a terminal
            self._tokenizer: Any = transformers.AutoTokenizer.from_pretrained(
                model, trust_remote_code=trust_remote_code
            )
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"the tokenizer cannot be loaded: {' '.join(str(error).split())[:200]}",
                where=f"use_tokenizer_template, tokenizer of {model!r}",
                next_step="give the directory its tokenizer's files; set trust_remote_code = true for one that is code",
            ) from error
        if not getattr(self._tokenizer, "chat_template", None):
            raise ConfigError(
                "the tokenizer has no chat template",
                where=f"use_tokenizer_template, tokenizer of {model!r}",
                next_step="set use_tokenizer_template = false and name a renderer in chat_template",
            )
        self.stop_token_ids = stop_token_ids

    def prompt_ids(self, messages: list[Message], tools: list[ToolSpec] | None, *, generate: bool = True) -> list[int]:
        """Render the conversation, with a generation prompt where one is wanted."""
        try:
            text = self._tokenizer.apply_chat_template(
                messages, tools=tools, add_generation_prompt=generate, tokenize=False
            )
        except _TEMPLATE_FAULTS as error:
            raise RenderError(
                f"the tokenizer's chat template cannot render these messages: {error}",
                where="messages",
                next_step="send messages of the form that this model's template takes",
            ) from error
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def message(self, ids: list[int], prompt_ids: Sequence[int], tools: list[ToolSpec] | None) -> dict[str, Any]:
        """Return the assistant message: the decoded text without special tokens."""
        return {"role": "assistant", "content": self._tokenizer.decode(ids, skip_special_tokens=True)}


@dataclass(frozen=True, slots=True)
class _Exchange:
    body: ChatBody
    request: GenerateRequest
    response: GenerateResponse


class ChatService:
    """Answers chat bodies with the engine it belongs to; the renderer is made on the first one."""

    def __init__(self, engine: LocalEngine) -> None:
        self._engine = engine
        self._format: ChatFormat | None = None
        self._making = threading.Lock()

    async def tokenize(self, body: TokenizeBody) -> dict[str, Any]:
        """Return the ids that a conversation is rendered to."""
        core = self._engine.core
        core.limits.check_model(body.model)
        tokens = await self._render(body.messages, body.tools, generate=body.add_generation_prompt)
        return {"count": len(tokens), "max_model_len": core.limits.context, "tokens": tokens}

    async def _render(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, *, generate: bool = True
    ) -> list[int]:
        format_ = await asyncio.to_thread(self._get_format)
        return await asyncio.to_thread(
            format_.prompt_ids,
            messages,  # type: ignore[arg-type]
            tools or None,
            generate=generate,
        )

    async def complete(
        self, body: ChatBody, *, prompt: list[int] | None = None, data_parallel_rank: int | None = None
    ) -> dict[str, Any]:
        """Return the OpenAI answer, with ids and log-probabilities where `return_token_ids` asks for them.

        With `prompt` the messages are not rendered: the model sees exactly these ids.
        """
        self._engine.core.limits.check_model(body.model)
        format_ = await asyncio.to_thread(self._get_format)
        if prompt is None:
            prompt = await self._render(body.messages, body.tools)
        sampling = body.sampling()
        request = GenerateRequest(
            model=body.model,
            prompt_token_ids=prompt,
            sampling=replace(
                sampling,
                max_tokens=body.max_completion_tokens or sampling.max_tokens,
                stop_token_ids=tuple(dict.fromkeys([*format_.stop_token_ids, *sampling.stop_token_ids])),
            ),
            priority=body.priority,
            cache_salt=body.cache_salt,
            request_id=body.request_id,
            data_parallel_rank=data_parallel_rank,
        )
        response = await self._engine.generate(request)
        return await asyncio.to_thread(_answer, format_, _Exchange(body, request, response))

    def _get_format(self) -> ChatFormat:
        with self._making:
            if self._format is None:
                options = self._engine.options
                config = self._engine.core.model.generation_config
                self._format = make_format(options, config)
            return self._format


def make_format(options: LocalEngineOptions, generation_config: Any) -> ChatFormat:
    """Return the chat format that the options ask for."""
    if options.use_tokenizer_template:
        stop = getattr(generation_config, "eos_token_id", None)
        stops = [stop] if isinstance(stop, int) else list(stop or ())
        return TemplateFormat(options.model, stops, trust_remote_code=options.trust_remote_code)
    from prl import create_renderer, load_tokenizer

    tokenizer = load_tokenizer(options.model)
    return RendererFormat(
        create_renderer(tokenizer, options.chat_template, model=options.name, **options.chat_template_options)
    )


def _answer(format_: ChatFormat, exchange: _Exchange) -> dict[str, Any]:
    body, response = exchange.body, exchange.response
    answer: dict[str, Any] = {
        "id": f"chatcmpl-{response.request_id or uuid.uuid4().hex}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": body.model,
        "choices": [_choice(format_, exchange, i, choice) for i, choice in enumerate(response.choices)],
        "usage": response.usage,
        "weight_version": response.weight_version,
    }
    if body.return_token_ids:
        answer["prompt_token_ids"] = response.prompt_token_ids
    return answer


def _choice(format_: ChatFormat, exchange: _Exchange, index: int, choice: GenerateChoice) -> dict[str, Any]:
    body = exchange.body
    message = format_.message(choice.token_ids, exchange.response.prompt_token_ids, body.tools or None)
    calls = choice.finish_reason == "stop" and bool(message.get("tool_calls"))
    out: dict[str, Any] = {
        "index": index,
        "message": message,
        "finish_reason": "tool_calls" if calls else choice.finish_reason,
        "logprobs": None,
    }
    if body.logprobs or body.return_token_ids:
        out["logprobs"] = {
            "content": [
                {"token": f"token_id:{token}", "logprob": value, "bytes": None, "top_logprobs": []}
                for token, value in zip(choice.token_ids, choice.logprobs, strict=True)
            ]
        }
    if body.return_token_ids:
        out["token_ids"] = choice.token_ids
    return out


def _json(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
