"""Calls in nested tags of any family, and calls that only their closing tag completes."""

from __future__ import annotations

import time
from typing import Any

import pytest

from prl.contracts import CallView, PieceWriter, ReadCall
from prl.parse import CompletionParser, Grammar, ReasoningState, TaggedCalls, read_functions
from prl.testing.byte_tokenizer import ByteTokenizer
from prl.tokenizer import as_tokenizer
from prl.types import ParsedResponse, ToolSpec

TAGS = TaggedCalls(function=("<do ", ">"), parameter=("<with ", ">"), function_end="</do>", parameter_end="</with>")


def test_values_may_hold_tags_and_keep_their_line_feeds() -> None:
    """A value that quotes the format must arrive as it was written."""
    [call] = TAGS.read("\n<do note>\n<with text>\n<with x>1</with> </with>\n<with n>2</with>\n</do>\n", None)
    assert (call.name, call.arguments) == ("note", {"text": "\n<with x>1</with> ", "n": 2})


@pytest.mark.parametrize(
    ("value", "more"),
    [
        ("<parameter=a>\nx\n</parameter>", {}),
        ("<function=g>\n<parameter=a>\nx\n</parameter>\n</function>\nand <parameter=b>y</parameter> so", {}),
        ("</parameter>", {}),
        ("x", {"n": 1}),
    ],
)
def test_a_parameter_inside_a_value_is_text(value: str, more: dict[str, Any]) -> None:
    """A file about the format was written with arguments that nobody gave: its quoted parameters became real ones.

    A parameter whose closing tag the model left out still ends where the next one begins.
    https://github.com/vllm-project/vllm/pull/34919 https://github.com/vllm-project/vllm/pull/23099
    """
    end = "" if more else "\n</parameter>"
    others = "".join(f"\n<parameter={key}>\n{item}\n</parameter>" for key, item in {**more, "z": "end"}.items())
    [call] = read_functions(f"\n<function=f>\n<parameter=k>\n{value}{end}{others}\n</function>\n", None)
    assert (call.error, call.arguments) == ("", {"k": value, **more, "z": "end"})


def test_a_value_with_thousands_of_closing_tags_is_read_in_linear_time() -> None:
    """Each tag was tried as the end of the name: seconds of CPU for one collapsed completion, while others wait."""
    region = "<function=f>\n<parameter=a>" + "</parameter> " * 8000 + "z</function>"
    began = time.process_time()
    [call] = read_functions(region, None)
    assert time.process_time() - began < 1.0
    assert call.arguments == {"a": "</parameter> " * 8000 + "z"}


def test_a_name_ends_at_its_own_delimiter() -> None:
    """A key that holds `>` loses its call: https://github.com/vllm-project/vllm/pull/38803"""
    quoted = TaggedCalls(
        function=('<do "', '">'), parameter=('<with "', '">'), function_end="</do>", parameter_end="</with>"
    )
    [call] = quoted.read('<do "f"><with "a>b">x</with></do>', None)
    assert (call.name, call.arguments) == ("f", {"a>b": "x"})


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


def parse(text: str, codec: Any) -> ParsedResponse:
    tokenizer = as_tokenizer(ByteTokenizer(["<call>", "</call>", "<stop>", "<turn>"]))
    grammar = Grammar.build(
        tokenizer,
        opener=tokenizer.encode("<turn>")[0],
        stop_ids=tokenizer.encode("<stop>"),
        reasoning=None,
        tool_codec=codec,
        content_strip="",
    )
    parser = CompletionParser(grammar, ReasoningState.CLOSED)
    parser.feed(tokenizer.encode(text))
    return parser.finish()


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
    parsed = parse(text, BareCodec())
    assert [call.name for call in parsed.tool_calls] == names
    assert [call.raw for call in parsed.invalid_tool_calls] == kept


class TaggedCodec(BareCodec):
    """Tags between the same markers."""

    needs_close = False

    def read(self, region: str, tools: list[ToolSpec] | None) -> list[ReadCall]:
        return TAGS.read(region, tools)

    def is_inside_value(self, region: str) -> bool:
        return TAGS.is_inside_parameter(region)


QUOTED = "<call><do g><with a>x</with></do><do h></do></call>"


@pytest.mark.parametrize(
    ("text", "values", "kept"),
    [
        (f"<call><do f><with k>{QUOTED} so</with></do></call>", [f"{QUOTED} so"], ""),
        (
            f"<call><do f><with k>{QUOTED}{QUOTED}</with></do></call><call><do f><with k>y</with></do></call>",
            [QUOTED + QUOTED, "y"],
            "",
        ),
        (
            "<call><do f><with k>say <call> first</with></do></call><call><do f><with k>y</with></do></call>",
            ["say <call> first", "y"],
            "",
        ),
        (f"<call><do f><with k>{QUOTED} so", [], f"<call><do f><with k>{QUOTED} so"),
    ],
)
def test_a_call_that_a_value_quotes_does_not_end_the_call(text: str, values: list[str], kept: str) -> None:
    """A model that writes about its own format: half of the file was written, and the rest became its answer.

    https://github.com/local-inference-lab/vllm/pull/639
    """
    parsed = parse(text, TaggedCodec())
    assert [call.arguments for call in parsed.tool_calls] == [{"k": value} for value in values]
    assert (parsed.content, "".join(call.raw for call in parsed.invalid_tool_calls)) == ("", kept)
