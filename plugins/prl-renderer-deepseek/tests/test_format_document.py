"""FORMAT.md shows what the renderers really write."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from fixtures.plugin import real_tokenizer

from prl import create_renderer

TEXT = (Path(__file__).parents[1] / "FORMAT.md").read_text(encoding="utf-8")
VOCABULARY = {
    "deepseek-v3": "deepseek-v3",
    "deepseek-r1": "deepseek-r1",
    "deepseek-v3.1": "deepseek-r1",
    "deepseek-v4": "deepseek-v4",
}
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


@pytest.mark.parametrize("name", VOCABULARY)
def test_the_example_is_what_the_renderer_writes(name: str) -> None:
    """A reader who builds on the document builds on its examples."""
    tokenizer = real_tokenizer(VOCABULARY[name])
    [shown] = re.findall(rf"as `{re.escape(name)}`[^~]*~~~text\n(.*?)\n~~~", TEXT, re.DOTALL)
    assert tokenizer.decode(create_renderer(tokenizer, name).render_ids(TALK, add_generation_prompt=True)) == shown
    assert f"| `{name}` |" in TEXT
