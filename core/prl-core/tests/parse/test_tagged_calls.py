"""Calls in nested tags of any family, and calls that only their closing tag completes."""

from __future__ import annotations

import pytest

from prl.contracts import CallView, PieceWriter, ReadCall
from prl.parse import CompletionParser, Grammar, ReasoningState, TaggedCalls
from prl.testing.byte_tokenizer import ByteTokenizer
from prl.tokenizer import as_tokenizer
from prl.types import ToolSpec

TAGS = TaggedCalls(function=("<do ", ">"), parameter=("<with ", ">"), function_end="</do>", parameter_end="</with>")


def test_values_may_hold_tags_and_keep_their_line_feeds() -> None:
    """A value that quotes the format must arrive as it was written."""
    [call] = TAGS.read("\n<do note>\n<with text>\n<with x>1</with> </with>\n<with n>2</with>\n</do>\n", None)
    assert (call.name, call.arguments) == ("note", {"text": "\n<with x>1</with> ", "n": 2})


@pytest.mark.parametrize(
    "region", ["", "<do f>", "<do >\n</do>", "<do f><with a>1</do>", "<do f>x</do>", "x<do f></do>"]
)
def test_what_is_no_call_says_so(region: str) -> None:
    """A malformed call that reads as a call would be executed."""
    [call] = TAGS.read(region, None)
    assert call.arguments is None
    assert call.error


class BareCodec:
    """A name between markers: whole at any point."""

    open = "<call>"
    close = "</call>"
    needs_close = True

    def write(self, out: PieceWriter, calls: list[CallView], *, after_text: bool) -> None:
        for call in calls:
            out.control(self.open)
            out.value(call.name)
            out.control(self.close)

    def read(self, region: str, tools: list[ToolSpec] | None) -> list[ReadCall]:
        return [ReadCall(region, region, {})]

    def is_inside_value(self, region: str) -> bool:
        return False

    def trim_before(self, space: str) -> str:
        return space


@pytest.mark.parametrize(
    ("text", "names", "kept"),
    [
        ("<call>now</call>", ["now"], []),
        ("<call>no", [], ["<call>no"]),
        ("<call>no<call>now</call>", ["now"], ["<call>no"]),
        ("<call>no<stop>", [], ["<call>no"]),
    ],
)
def test_a_call_that_never_closes_is_kept_but_not_executed(text: str, names: list[str], kept: list[str]) -> None:
    """`delete_all` cut down to `delete` is another call."""
    tokenizer = as_tokenizer(ByteTokenizer(["<call>", "</call>", "<stop>", "<turn>"]))
    ids = tokenizer.encode(text)
    grammar = Grammar.build(
        tokenizer,
        opener=tokenizer.encode("<turn>")[0],
        stop_ids=tokenizer.encode("<stop>"),
        reasoning=None,
        tool_codec=BareCodec(),
        content_strip="",
    )
    parser = CompletionParser(grammar, ReasoningState.CLOSED)
    parser.feed(ids)
    parsed = parser.finish()
    assert [call.name for call in parsed.tool_calls] == names
    assert [call.raw for call in parsed.invalid_tool_calls] == kept
