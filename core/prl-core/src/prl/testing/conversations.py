"""Seeded conversations: the ordinary ones, and the edges where templates, renderers and parsers differ."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from prl.types import Message, ToolCall, ToolSpec

MARKUP = (
    "<think>",
    "</think>",
    "<think>\nhm\n</think>\n\n",
    "<tool_call>",
    "</tool_call>",
    '<tool_call>\n{"name": "f"}\n</tool_call>',
    "<tool_response>",
    "</tool_response>",
    "</function>",
    "</parameter>",
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
)

_TEXT = """
the river runs north and the old bridge is closed on Sunday please check whether train 42 leaves at 09:15 or later it's
don't print(x) != None a+b=c {"k": [1, 2]} https://example.org/a?b=1&c=2 Zürich naïve Łódź москва 東京 です 🙂 x²≥½ …
"""
_PROSE = (*_TEXT.split(), "👩\u200d👩\u200d👧")
_GAPS = (" ", " ", " ", " ", "\n", "\n\n", "  ", ", ", ". ", ".\n")
_EDGE_TEXTS = ("", " ", "\n", "\n\n", "  \n ", "\t", "\u00a0", "0", "null", "{}", ".", "\ufeff", "e\u0301", "\u212b")
_OUTER_SPACE = ("\n", "\n\n", " ", "  ", "\t", " \n", "\n ", "\r\n")
_NAMES = ("get_weather", "search", "run", "math.add", "f", "naïve-name", "a_very_long_function_name_2")
_KEYS = ("city", "query", "n", "größe", "opt-in", "x y", "nested", "タグ", "path", "limit")


@dataclass(frozen=True, kw_only=True)
class Style:
    """What a generated conversation may hold; rates are probabilities per place.

    `edge` is the rate of odd text (blank, outer white space, markup, combining characters), `parts` of text-part lists,
    `null` of null content (a fifth of it outside assistant turns), `tools` of a tool list, `string_arguments` of
    arguments in the JSON string of the wire form.
    `late_system` is the rate of a system message after the first place; `reasoning` of reasoning in an assistant turn;
    `disorder` of conversations in which turns are missing or out of order.
    """

    edge: float = 0.25
    parts: float = 0.1
    null: float = 0.15
    tools: float = 0.5
    calls: float = 0.5
    reasoning: float = 0.5
    inline_reasoning: float = 0.1
    string_arguments: float = 0.2
    system: float = 0.4
    late_system: float = 0.05
    disorder: float = 0.05
    max_rounds: int = 4
    markup: Sequence[str] = MARKUP


ORDINARY = Style(edge=0, parts=0, null=0, inline_reasoning=0, string_arguments=0, late_system=0, disorder=0, markup=())


@dataclass(frozen=True, kw_only=True)
class GeneratedConversation:
    """One conversation: messages in OpenAI form, and the tools offered or None."""

    messages: list[Message] = field(default_factory=list)
    tools: list[ToolSpec] | None = None


def generate_conversations(count: int, *, seed: int = 0, style: Style | None = None) -> Iterator[GeneratedConversation]:
    """Yield `count` conversations; the same seed and style give the same ones on every machine."""
    for number in range(count):
        yield generate_conversation(seed * 1_000_003 + number, style)


def generate_conversation(seed: int, style: Style | None = None) -> GeneratedConversation:
    """Write one conversation: optional system turn, then rounds of user, assistant, calls and results."""
    writer = _Writer(random.Random(seed), style or Style())
    return GeneratedConversation(tools=writer.tools(), messages=writer.conversation())


def generate_assistant(seed: int, style: Style | None = None) -> Message:
    """Write one assistant turn (for round trips through render and parse)."""
    return _Writer(random.Random(seed), style or Style()).assistant(allow_calls=True)


class _Writer:
    def __init__(self, rng: random.Random, style: Style) -> None:
        self.rng = rng
        self.style = style
        self.calls_made = 0

    def chance(self, rate: float) -> bool:
        return self.rng.random() < rate

    def text(self, words: int = 12) -> str:
        """Write text; at the style's rate, one of the edges."""
        if not self.chance(self.style.edge):
            return self.prose(words)
        draw = self.rng.randrange(4)
        if draw == 0:
            return self.rng.choice(_EDGE_TEXTS)
        if draw == 1:
            return self.rng.choice(_OUTER_SPACE) + self.prose(words) + self.rng.choice(_OUTER_SPACE)
        if draw == 2 and self.style.markup:
            return self.prose(3) + self.rng.choice(("", " ", "\n")) + self.rng.choice(self.style.markup) + self.prose(3)
        return self.rng.choice(_OUTER_SPACE) + self.rng.choice((*_EDGE_TEXTS, *self.style.markup))

    def prose(self, words: int) -> str:
        parts = [self.rng.choice(_PROSE)]
        for _ in range(self.rng.randrange(words)):
            parts += [self.rng.choice(_GAPS), self.rng.choice(_PROSE)]
        return "".join(parts)

    def content(self, words: int = 12) -> str | list[dict[str, Any]] | None:
        """Write content as text or, at the style's rates, as null or a list of text parts."""
        if self.chance(self.style.null / 5):
            return None
        if not self.chance(self.style.parts):
            return self.text(words)
        return [{"type": "text", "text": self.text(4)} for _ in range(self.rng.randint(1, 3))]

    def conversation(self) -> list[Message]:
        messages: list[Message] = []
        if self.chance(self.style.system):
            messages.append({"role": "system", "content": self.content()})
        for _ in range(self.rng.randint(1, self.style.max_rounds)):
            messages.append({"role": "user", "content": self.content()})
            while self.chance(self.style.calls) and len(messages) < 24:
                turn = self.assistant(allow_calls=True)
                messages.append(turn)
                messages += self.results(turn)
            if self.chance(0.85):
                messages.append(self.assistant(allow_calls=False))
            if self.chance(self.style.late_system):
                messages.append({"role": "system", "content": self.content(4)})
        return self.disorder(messages) if self.chance(self.style.disorder) else messages

    def disorder(self, messages: list[Message]) -> list[Message]:
        """Drop or move one message: a result without its call, an assistant turn first, no user at all."""
        place = self.rng.randrange(len(messages))
        moved = messages.pop(place)
        if self.chance(0.5) or not messages:
            messages.insert(self.rng.randint(0, len(messages)), moved)
        return messages

    def assistant(self, *, allow_calls: bool) -> Message:
        message: Message = {"role": "assistant", "content": self.content()}
        if self.chance(self.style.reasoning):
            self.add_reasoning(message)
        if allow_calls and self.chance(0.9):
            message["tool_calls"] = [self.call() for _ in range(self.rng.choice((1, 1, 1, 2, 3)))]
            if self.chance(0.4):
                message["content"] = ""
        if self.chance(self.style.null):
            message["content"] = None
        return message

    def add_reasoning(self, message: Message) -> None:
        reasoning = self.text(16)
        content = message["content"]
        if isinstance(content, str) and self.chance(self.style.inline_reasoning):
            gap = self.rng.choice(("", "\n"))
            message["content"] = f"<think>{gap}{reasoning}{gap}</think>{gap}{gap}{content}"
        elif self.chance(0.25):
            message["reasoning"] = reasoning
        else:
            message["reasoning_content"] = reasoning

    def call(self) -> ToolCall:
        self.calls_made += 1
        arguments: dict[str, Any] = {key: self.value() for key in self.rng.sample(_KEYS, self.rng.randrange(4))}
        as_text = self.chance(self.style.string_arguments)
        return {
            "id": f"call_{self.calls_made}",
            "type": "function",
            "function": {
                "name": self.rng.choice(_NAMES),
                "arguments": json.dumps(arguments, ensure_ascii=self.chance(0.5)) if as_text else arguments,
            },
        }

    def results(self, turn: Message) -> list[Message]:
        """Answer each call, sometimes out of order."""
        calls = list(turn.get("tool_calls") or ())
        if self.chance(0.1):
            self.rng.shuffle(calls)
        return [
            {
                "role": "tool",
                "tool_call_id": call.get("id"),
                "name": call["function"]["name"],
                "content": json.dumps(self.value(), ensure_ascii=False) if self.chance(0.3) else self.content(20),
            }
            for call in calls
        ]

    def value(self, depth: int = 0) -> Any:
        """Write a JSON value, with the ones that lose their type on the way through text."""
        scalars = (
            True,
            False,
            None,
            0,
            -1,
            42,
            10**18,
            1.0,
            -0.5,
            1e-7,
            1e22,
            "",
            "true",
            "None",
            "1.0",
            "null",
            "[1]",
        )
        draw = self.rng.random()
        if draw < 0.35 or depth > 2:
            return self.rng.choice(scalars)
        if draw < 0.75:
            return self.text(5)
        if draw < 0.87:
            return [self.value(depth + 1) for _ in range(self.rng.randrange(3))]
        return {key: self.value(depth + 1) for key in self.rng.sample(_KEYS, self.rng.randrange(3))}

    def tools(self) -> list[ToolSpec] | None:
        if not self.chance(self.style.tools):
            return [] if self.chance(self.style.edge / 10) else None
        return [self.tool(name) for name in self.rng.sample(_NAMES, self.rng.randint(1, 3))]

    def tool(self, name: str) -> ToolSpec:
        properties = {
            key: {"type": self.rng.choice(("string", "integer", "boolean", "object")), "description": self.prose(4)}
            for key in self.rng.sample(_KEYS, self.rng.randrange(4))
        }
        function: dict[str, Any] = {"name": name, "description": self.prose(8)}
        if self.chance(0.9):
            function["parameters"] = {"type": "object", "properties": properties, "required": sorted(properties)[:1]}
        if self.chance(0.2):
            function["strict"] = True
        return {"type": "function", "function": function}
