"""A format's document shows what its renderer really writes."""

from __future__ import annotations

import pytest
from fixtures.documents import blocks
from fixtures.environments import ROOT
from fixtures.plugin import real_tokenizer

import prl
from prl.types import Message

FORMAT = ROOT / "plugins" / "prl-renderer-qwen" / "FORMAT.md"
TALK: list[Message] = [
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


@pytest.mark.parametrize(("place", "name", "vocabulary"), [(0, "qwen3", "qwen3"), (1, "qwen3.6", "qwen3.5")])
def test_the_example_is_what_the_renderer_writes(place: int, name: str, vocabulary: str) -> None:
    tokenizer = real_tokenizer(vocabulary)
    shown = [block.text for block in blocks(FORMAT) if block.text.startswith("<|im_start|>")][place]
    rendered = prl.create_renderer(tokenizer, name).render(TALK, add_generation_prompt=True)
    assert tokenizer.decode(rendered.token_ids) == shown


def test_every_renderer_of_the_plugin_is_in_its_table() -> None:
    from prl.plugin import get_registry

    offered = [
        record.name
        for record in get_registry().all("renderer")
        if get_registry().provider(record).dist == "prl-renderer-qwen"
    ]
    text = FORMAT.read_text(encoding="utf-8")
    assert [name for name in offered if f"| `{name}` |" not in text] == []
