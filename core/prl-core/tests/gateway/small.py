"""A made-up chat format with reasoning, tools and calls, and an engine that says what a test writes down."""

from __future__ import annotations

import asyncio
from typing import Any

from prl.contracts import CallView, PieceWriter, ReadCall
from prl.parse import CallSyntaxError, is_inside_string, load_object
from prl.render import ChatFormat, ChatRenderer, Conversation, RendererOptions, Writer, dump_json
from prl.testing.byte_tokenizer import ByteTokenizer
from prl.tokenizer import as_tokenizer
from prl.types import GenerateChoice, GenerateRequest, GenerateResponse

CONTROLS = ("<s>", "</s>", "<think>", "</think>", "<call>", "</call>")
TOKENIZER = as_tokenizer(ByteTokenizer(CONTROLS))
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
ASK = '<call>{"name": "weather", "arguments": {"city": "Bern", "days": 2}}</call>'


class Think:
    open, close, after_open, before_close, after_close = "<think>", "</think>", "\n", "\n", "\n"
    strip: str | None = "\n"
    content_strip: str | None = "\n"


class JsonCalls:
    open, close = "<call>", "</call>"

    def write(self, out: PieceWriter, calls: list[CallView], *, after_text: bool) -> None:
        for call in calls:
            out.control("<call>")
            out.value(dump_json({"name": call.name, "arguments": call.arguments}))
            out.control("</call>")

    def read(self, region: str, tools: Any) -> list[ReadCall]:
        try:
            call = load_object(region)
            return [ReadCall(region, call["name"], call["arguments"])]
        except (CallSyntaxError, KeyError) as err:
            return [ReadCall(region, error=str(err))]

    def is_inside_value(self, region: str) -> bool:
        return is_inside_string(region)

    def trim_before(self, space: str) -> str:
        return space


class Small(ChatFormat):
    """Tools stand before the first message; a new question drops earlier reasoning."""

    turn_opener = "<s>"
    stop_tokens = ("</s>",)
    reasoning = Think()
    tool_codec = JsonCalls()

    def write_preamble(self, out: Writer, conversation: Conversation) -> None:
        out.begin(None)
        out.text("".join(dump_json(tool) + "\n" for tool in conversation.tools or ()))

    def write_message(self, out: Writer, conversation: Conversation, position: int) -> None:
        view = conversation.messages[position]
        out.begin(view)
        out.control("<s>")
        out.text(view.role + "\n")
        if view.role == "assistant":
            out.begin_sampled()
        later = conversation.messages[position + 1 :]
        if view.reasoning and not any(self.is_query(one) for one in later):
            out.control("<think>")
            out.text("\n")
            out.content(view.reasoning)
            out.text("\n")
            out.control("</think>")
            out.text("\n")
        out.content(view.text)
        if view.calls:
            self.tool_codec.write(out, list(view.calls), after_text=bool(view.text))
        out.control("</s>")
        out.end_sampled()
        out.text("\n")

    def write_generation_prompt(self, out: Writer, conversation: Conversation) -> None:
        out.control("<s>")
        out.text("assistant\n")


def small_renderer(**options: Any) -> ChatRenderer:
    return ChatRenderer("small", TOKENIZER, Small(RendererOptions(**options)), CONTROLS)


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
