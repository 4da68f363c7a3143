"""Seeded workloads: tool conversations whose tool outputs are real source code, as agents read it."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

_SYLLABLES = "ta re mi con sol ver den qua bri lo ste nor al ch ex pan ul gra fi zo mer ti ous ing ed ly ers tion"
TOOL_NAMES = ("read_file", "search", "run_tests")


@dataclass(frozen=True)
class Rollout:
    """One agent episode: `messages[:opening]` begin it; after that assistant turns and tool results alternate."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    opening: int = 2

    def prompt_messages(self, turn: int) -> list[dict[str, Any]]:
        """Messages of the prompt of turn `turn`."""
        return self.messages[: self.opening + 2 * turn]

    @property
    def turns(self) -> int:
        """How many assistant turns there are."""
        return (len(self.messages) - self.opening + 1) // 2


def tool_rollout(seed: int, turns: int, *, result_lines: int) -> Rollout:
    """Write an episode of `turns` assistant turns, each but the last followed by one tool result."""
    rng = random.Random(seed)
    words = _vocabulary(rng, 900)
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": _prose(rng, words, 60)},
        {"role": "user", "content": _prose(rng, words, 80)},
    ]
    for turn in range(turns):
        messages.append(_assistant(rng, words, turn, last=turn == turns - 1))
        if turn < turns - 1:
            messages.append({"role": "tool", "tool_call_id": f"call_{turn}", "content": _source(rng, result_lines)})
    return Rollout(messages, [_tool(rng, words, name) for name in TOOL_NAMES])


def _assistant(rng: random.Random, words: list[str], turn: int, *, last: bool) -> dict[str, Any]:
    message = {
        "role": "assistant",
        "reasoning_content": _prose(rng, words, rng.randint(30, 90)),
        "content": _prose(rng, words, rng.randint(8, 30)),
    }
    if not last:
        arguments = {
            "path": "/".join(rng.choices(words, k=3)) + ".py",
            "line": rng.randrange(5000),
            "why": _prose(rng, words, 12),
        }
        function = {"name": rng.choice(TOOL_NAMES), "arguments": arguments}
        message["tool_calls"] = [{"id": f"call_{turn}", "type": "function", "function": function}]
    return message


def _tool(rng: random.Random, words: list[str], name: str) -> dict[str, Any]:
    properties = {
        "path": {"type": "string", "description": _prose(rng, words, 10)},
        "line": {"type": "integer", "description": _prose(rng, words, 10)},
        "why": {"type": "string", "description": _prose(rng, words, 10)},
    }
    parameters = {"type": "object", "properties": properties, "required": ["path"]}
    function = {"name": name, "description": _prose(rng, words, 30), "parameters": parameters}
    return {"type": "function", "function": function}


def _vocabulary(rng: random.Random, size: int) -> list[str]:
    syllables = _SYLLABLES.split()
    return ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(size)]


def _prose(rng: random.Random, words: list[str], count: int) -> str:
    """Write words with a Zipf-like distribution, with sentences and some numbers."""
    out: list[str] = []
    for place in range(count):
        rank = min(int(rng.paretovariate(0.7)) - 1, len(words) - 1)
        word = str(rng.randrange(10_000)) if rng.random() < 0.03 else words[rank]
        out.append(word.capitalize() + "." if place % 11 == 10 else word)
    return " ".join(out)


def _source(rng: random.Random, lines: int) -> str:
    source = _library()
    start = rng.randrange(len(source) - lines)
    return "\n".join(source[start : start + lines])


@lru_cache(maxsize=1)
def _library() -> list[str]:
    """Return the lines of Python's own library modules."""
    files = sorted(Path(os.__file__).parent.glob("*.py"))
    return [line for file in files for line in file.read_text(encoding="utf-8", errors="replace").splitlines()]
