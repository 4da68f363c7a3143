"""Markers that are also ordinary text: what the codec says is no call stays where it was, in any chunking."""

from __future__ import annotations

from typing import Any

import pytest
from kit.sample import JsonCalls

from prl.parse import CompletionParser, Grammar, ReasoningState, TaggedReasoning
from prl.testing import ByteTokenizer
from prl.tokenizer import as_tokenizer
from prl.types import ParsedResponse

TOKENIZER = as_tokenizer(ByteTokenizer(["<s>", "</s>", "<think>", "</think>"]))
CALL = '[{"name": "f", "arguments": {"x": [1]}}]'


class Bracketed(JsonCalls):
    open, close = "[", "]"

    def is_call(self, region: str) -> bool:
        return region.startswith("{")

    def is_inside_value(self, region: str) -> bool:
        return region.count("{") > region.count("}")


def parse(text: str, begin: ReasoningState = ReasoningState.CLOSED, *, size: int = 1000) -> ParsedResponse:
    begin_id, stop_id = TOKENIZER.encode("<s></s>")
    grammar = Grammar.build(
        TOKENIZER,
        opener=begin_id,
        stop_ids=[stop_id],
        reasoning=TaggedReasoning(),
        tool_codec=Bracketed(),
        content_strip=None,
    )
    parser: Any = CompletionParser(grammar, begin)
    ids = TOKENIZER.encode(text)
    for start in range(0, len(ids), size):
        parser.feed(ids[start : start + size])
    parsed: ParsedResponse = parser.finish()
    return parsed


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("text", ["See [1].", "a \n\n[b [c] d]  \n[", "[]", "x[0] = [", "[ {} ]"])
def test_text_between_markers_keeps_its_place_and_its_space(text: str, size: int) -> None:
    parsed = parse(text + "</s>", size=size)
    assert (parsed.content, parsed.tool_calls, parsed.invalid_tool_calls) == (text, (), ())


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_calls_are_still_read_beside_it(size: int) -> None:
    parsed = parse(f"See [1].\n{CALL}</s>", size=size)
    assert parsed.content == "See [1]."
    assert [(call.name, call.arguments) for call in parsed.tool_calls] == [("f", {"x": [1]})]


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_brackets_in_a_thought_do_not_end_it(size: int) -> None:
    """The rest of the thought would be shown as the answer."""
    parsed = parse(f"\nList [1] or {CALL}?\n</think>\n\nOne.</s>", ReasoningState.OPEN, size=size)
    assert (parsed.reasoning_content, parsed.content) == (f"List [1] or {CALL}?", "One.")
    assert parsed.tool_calls == ()


def test_a_malformed_call_is_no_text() -> None:
    parsed = parse('So: [{"name": }]</s>')
    assert parsed.content == "So:"
    assert [call.raw for call in parsed.invalid_tool_calls] == ['[{"name": }]']
