"""FORMAT.md shows what the renderer really writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fixtures.documents import blocks
from fixtures.plugin import real_tokenizer

from prl import create_renderer

FORMAT = Path(__file__).parents[1] / "FORMAT.md"
TALK: list[Any] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is 2 + 3?"},
    {
        "role": "assistant",
        "content": None,
        "reasoning_content": "Add them.",
        "tool_calls": [{"function": {"name": "add", "arguments": {"a": 2, "b": 3}}}],
    },
    {"role": "tool", "content": "5"},
]


def test_the_example_is_what_the_renderer_writes() -> None:
    """A reader who builds on the document builds on its example."""
    tokenizer = real_tokenizer("gpt-oss")
    [shown] = [block.text for block in blocks(FORMAT) if block.text.startswith("<|start|>")]
    renderer = create_renderer(tokenizer, "gpt-oss", conversation_start_date="2026-01-31")
    assert tokenizer.decode(renderer.render_ids(TALK, add_generation_prompt=True)) == shown.rstrip("\n")
