"""`reverse-text`: one turn; the answer should be the given words, spelt backwards."""

from __future__ import annotations

import random
from collections.abc import Sequence
from difflib import SequenceMatcher

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from prl.contracts import Example, StepResult
from prl.types import Message, ParsedResponse, ToolSpec

_WORDS = """
amber brook cedar delta ember field grove haven inlet jetty knoll lemon maple north ocean pearl quill river stone
thorn umber viola willow xenon yarrow zephyr
"""
WORDS = tuple(_WORDS.split())


class ReverseTextOptions(BaseModel):
    """How long the texts are."""

    model_config = ConfigDict(extra="forbid")

    words: PositiveInt = Field(default=2, description="words in a text")
    seed: int = 0


def similarity(answer: str, target: str) -> float:
    """Return 0..1: how much of `target` stands in `answer`, in order (1.0 means equal)."""
    return SequenceMatcher(None, answer, target, autojunk=False).ratio()


class ReverseTextEpisode:
    """One text to reverse."""

    def __init__(self, target: str) -> None:
        self.target = target

    async def step(self, message: Message, parsed: ParsedResponse | None) -> StepResult:
        """Reward the similarity of the answer to the reversed text."""
        content = message.get("content")
        answer = content.strip() if isinstance(content, str) else ""
        return StepResult(
            done=True, reward=similarity(answer, self.target), metrics={"exact": float(answer == self.target)}
        )


class ReverseText:
    """Short texts of common words."""

    name = "reverse-text"
    max_turns = 1

    def __init__(self, options: ReverseTextOptions) -> None:
        self.options = options

    @property
    def tools(self) -> Sequence[ToolSpec] | None:
        """Offer no tools."""
        return None

    def example(self, index: int) -> Example:
        """Return the text of task `index`."""
        draw = random.Random(f"reverse-text/{self.options.seed}/{index}")
        text = " ".join(draw.choice(WORDS) for _ in range(self.options.words))
        message: Message = {"role": "user", "content": f"Reverse this text: {text}"}
        return Example(id=f"reverse-text/{index}", messages=(message,), data={"target": text[::-1]})

    def start(self, example: Example) -> ReverseTextEpisode:
        """Begin an episode."""
        return ReverseTextEpisode(str(example.data["target"]))

    def demonstration(self, index: int) -> list[Message]:
        """Return the task with the right answer."""
        example = self.example(index)
        return [*example.messages, {"role": "assistant", "content": str(example.data["target"])}]


def create(options: ReverseTextOptions) -> ReverseText:
    """Create the environment."""
    return ReverseText(options)
