"""`number-guessing`: find a secret number with the tool `guess(n)`, which answers higher, lower or correct."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, field_validator, model_validator

from prl.contracts import Example, StepResult
from prl.types import Message, ParsedResponse, ToolSpec

Player = Callable[[random.Random, int, int, int, int], int]
"""(draw, low, high, least still possible, greatest still possible) -> guess."""


def _uniform(draw: random.Random, low: int, high: int, least: int, greatest: int) -> int:
    return draw.randint(low, high)


def _consistent(draw: random.Random, low: int, high: int, least: int, greatest: int) -> int:
    return draw.randint(least, greatest)


def _bisecting(draw: random.Random, low: int, high: int, least: int, greatest: int) -> int:
    return (least + greatest) // 2


PLAYERS: dict[str, Player] = {"uniform": _uniform, "consistent": _consistent, "bisecting": _bisecting}


class NumberGuessingOptions(BaseModel):
    """The range of the secret, the number of guesses, and who plays the demonstrations."""

    model_config = ConfigDict(extra="forbid")

    low: int = 1
    high: int = 3
    turns: PositiveInt = Field(default=2, description="guesses the model has")
    players: dict[str, float] = Field(
        default_factory=lambda: {"uniform": 0.4, "consistent": 0.6},
        description="share of each player in the demonstrations: uniform, consistent, bisecting",
    )
    seed: int = 0

    @field_validator("players")
    @classmethod
    def _known_players(cls, players: dict[str, float]) -> dict[str, float]:
        unknown = sorted(set(players) - set(PLAYERS))
        if unknown:
            raise ValueError(f"unknown players {unknown}; known are {sorted(PLAYERS)}")
        if not players or min(players.values()) < 0 or sum(players.values()) <= 0:
            raise ValueError("the shares must not be negative, and not all zero")
        return players

    @model_validator(mode="after")
    def _range(self) -> NumberGuessingOptions:
        if self.high <= self.low:
            raise ValueError("`high` must be greater than `low`")
        return self


def judge(secret: int, guess: int) -> str:
    """Return what the tool answers."""
    if guess == secret:
        return "correct"
    return "higher" if secret > guess else "lower"


class NumberGuessingEpisode:
    """One secret."""

    def __init__(self, secret: int, turns: int) -> None:
        self.secret = secret
        self.turns_left = turns
        self.malformed = 0

    async def step(self, message: Message, parsed: ParsedResponse | None) -> StepResult:
        """Answer one guess; a turn without one valid call ends the game without reward."""
        self.turns_left -= 1
        call = self._only_call(message, parsed)
        guess = None if call is None else _whole_number(call["function"]["arguments"])
        if call is None or guess is None:
            self.malformed += 1
            return self._end(0.0)
        answer = judge(self.secret, guess)
        if answer == "correct":
            return self._end(1.0)
        if self.turns_left <= 0:
            return self._end(0.0)
        reply: Message = {"role": "tool", "content": answer, "name": "guess"}
        if call.get("id"):
            reply["tool_call_id"] = call["id"]
        return StepResult(messages=(reply,))

    def _only_call(self, message: Message, parsed: ParsedResponse | None) -> Any:
        calls = message.get("tool_calls") or []
        broken = parsed is not None and bool(parsed.invalid_tool_calls)
        if broken or len(calls) != 1 or calls[0]["function"]["name"] != "guess":
            return None
        return calls[0]

    def _end(self, reward: float) -> StepResult:
        return StepResult(done=True, reward=reward, metrics={"malformed": float(self.malformed)})


def _whole_number(arguments: Any) -> int | None:
    """Read `n` from a mapping or from the JSON string of the OpenAI wire form; None where it is no whole number."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            return None
    value = arguments.get("n") if isinstance(arguments, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


class NumberGuessing:
    """All secrets of the range in turn, so that every batch is balanced."""

    name = "number-guessing"

    def __init__(self, options: NumberGuessingOptions) -> None:
        self.options = options
        self.max_turns = options.turns
        self._tools: list[ToolSpec] = [
            {
                "type": "function",
                "function": {
                    "name": "guess",
                    "description": "Guess the secret number.",
                    "parameters": {
                        "type": "object",
                        "properties": {"n": {"type": "integer"}},
                        "required": ["n"],
                    },
                },
            }
        ]

    @property
    def tools(self) -> Sequence[ToolSpec] | None:
        """Offer `guess(n)`."""
        return self._tools

    def example(self, index: int) -> Example:
        """Return task `index`; its secret is the index modulo the range."""
        options = self.options
        secret = options.low + index % (options.high - options.low + 1)
        prompt: Message = {"role": "user", "content": self._prompt()}
        return Example(id=f"number-guessing/{index}", messages=(prompt,), data={"secret": secret})

    def start(self, example: Example) -> NumberGuessingEpisode:
        """Begin an episode."""
        return NumberGuessingEpisode(int(example.data["secret"]), self.options.turns)

    def demonstration(self, index: int) -> list[Message]:
        """Return a whole game of a seeded player; it ends with the player's last guess."""
        options = self.options
        draw = random.Random(f"number-guessing/{options.seed}/{index}")
        secret = draw.randint(options.low, options.high)
        names = list(options.players)
        player = PLAYERS[draw.choices(names, weights=[options.players[name] for name in names])[0]]
        messages: list[Message] = [{"role": "user", "content": self._prompt()}]
        least, greatest = options.low, options.high
        for turn in range(options.turns):
            guess = player(draw, options.low, options.high, least, greatest)
            answer = judge(secret, guess)
            messages.append(_guess_message(guess, turn))
            if answer == "correct" or turn == options.turns - 1:
                break
            messages.append({"role": "tool", "content": answer, "name": "guess", "tool_call_id": f"call_{turn}"})
            if answer == "higher":
                least = max(least, guess + 1)
            else:
                greatest = min(greatest, guess - 1)
        return messages

    def _prompt(self) -> str:
        options = self.options
        return f"Find my number from {options.low} to {options.high}. You have {options.turns} guesses."


def _guess_message(guess: int, turn: int) -> Message:
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": f"call_{turn}", "type": "function", "function": {"name": "guess", "arguments": {"n": guess}}}
        ],
    }


def create(options: NumberGuessingOptions) -> NumberGuessing:
    """Create the environment."""
    return NumberGuessing(options)
