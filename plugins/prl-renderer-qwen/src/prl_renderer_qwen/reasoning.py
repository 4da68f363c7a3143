"""The `<think>` reasoning format."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict


class ThinkOptions(BaseModel):
    """Options of the `think` reasoning parser: none."""

    model_config = ConfigDict(frozen=True, extra="forbid")


@dataclass(slots=True)
class ThinkCodec:
    """Reasoning between `<think>` and `</think>` on lines of their own.

    Qwen3 strips line feeds around reasoning and after it; Qwen3.5 strips any white space (`strip=None`).
    """

    open: str = "<think>"
    close: str = "</think>"
    after_open: str = "\n"
    before_close: str = "\n"
    after_close: str = "\n\n"
    strip: str | None = "\n"
    content_strip: str | None = "\n"


def create_think(options: ThinkOptions) -> ThinkCodec:
    """Create the `think` reasoning parser."""
    return ThinkCodec()
