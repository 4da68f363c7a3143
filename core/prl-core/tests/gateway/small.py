"""The made-up chat format with tools, and an engine that says what a test writes down."""

from __future__ import annotations

import asyncio
from typing import Any

from fixtures import small_format
from fixtures.small_format import TOKENIZER, JsonCalls, Small

from prl.render import ChatRenderer, Conversation, Writer, dump_json
from prl.types import GenerateChoice, GenerateRequest, GenerateResponse

WEATHER = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
ASK = '<call>{"name": "weather", "arguments": {"city": "Bern", "days": 2}}</call>'


class WithTools(Small):
    """Tools stand before the first message; a new question drops earlier reasoning."""

    tool_codec = JsonCalls()

    def write_preamble(self, out: Writer, conversation: Conversation) -> None:
        out.begin(None)
        out.text("".join(dump_json(tool) + "\n" for tool in conversation.tools or ()))

    def keeps_reasoning(self, conversation: Conversation, position: int) -> bool:
        return not any(self.is_query(one) for one in conversation.messages[position + 1 :])


def small_renderer(**options: Any) -> ChatRenderer:
    return small_format.small_renderer(WithTools, **options)


class TalkingEngine:
    """Says the next of `lines`; a line ends by itself unless it ends in "..." (cut off); an exception is raised.

    While `gate` is set, answers wait for it.
    """

    def __init__(self) -> None:
        self.lines: list[str | Exception] = []
        self.requests: list[GenerateRequest] = []
        self.gate: asyncio.Event | None = None
        self.aborted = 0
        self.version = 3
        self.healthy = True

    async def generate(self, request: GenerateRequest) -> GenerateResponse:
        self.requests.append(request)
        try:
            if self.gate is not None:
                await self.gate.wait()
        except asyncio.CancelledError:
            self.aborted += 1
            raise
        choices = tuple(self._choice() for _ in range(request.sampling.n))
        return GenerateResponse(choices=choices, weight_version=self.version)

    def _choice(self) -> GenerateChoice:
        line = self.lines.pop(0) if self.lines else "ok"
        if isinstance(line, Exception):
            raise line
        cut = line.endswith("...")
        ids = TOKENIZER.encode(line.removesuffix("...") if cut else line + "</s>")
        return GenerateChoice(
            token_ids=ids,
            logprobs=[-0.25 - position / 1024 for position in range(len(ids))],
            finish_reason="length" if cut else "stop",
        )

    def prompt(self, number: int = -1) -> str:
        """The text of a prompt it got."""
        return TOKENIZER.decode(self.requests[number].prompt_token_ids)

    async def chat(self, body: dict[str, Any]) -> dict[str, Any]:
        raise AssertionError("the gateway sends ids")

    async def models(self) -> list[dict[str, Any]]:
        return [{"id": "small", "max_model_len": 4096}]

    async def health(self) -> bool:
        return self.healthy

    async def load_weights(self, directory: str, version: int) -> None:
        self.version = version

    async def close(self) -> None:
        return None
