"""The completion parser on a small grammar, with markers that are tokens and with markers spelled in text."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from fixtures.small_format import JsonCalls, Think
from hypothesis import given, settings
from hypothesis import strategies as st

from prl.parse import CompletionParser, Grammar, ReasoningState
from prl.testing.byte_tokenizer import ByteTokenizer
from prl.tokenizer import as_tokenizer
from prl.types import InvalidToolCall, ParsedResponse, ParsedToolCall

MARKERS = ("<think>", "</think>", "<call>", "</call>")
PIECES = (
    *MARKERS,
    "</s>",
    "<s>",
    '{"name": "f", "arguments": {"a": "',
    '"}}',
    "text",
    "\n",
    " ",
    "é",
    "🦉",
    '"',
    "{",
    "<",
    "</",
    "call>",
)


def grammar(*, spelled: bool) -> tuple[Any, Grammar]:
    tokenizer = as_tokenizer(ByteTokenizer(("<s>", "</s>") if spelled else ("<s>", "</s>", *MARKERS)))
    stops = [tokenizer.added_tokens["</s>"]]
    opener = tokenizer.added_tokens["<s>"]
    return tokenizer, Grammar.build(
        tokenizer, opener=opener, stop_ids=stops, reasoning=Think(), tool_codec=JsonCalls("\n"), content_strip=""
    )


BOTH = {spelled: grammar(spelled=spelled) for spelled in (False, True)}


def parse(text: str, begin: ReasoningState = ReasoningState.UNDECIDED, *, spelled: bool = False) -> ParsedResponse:
    tokenizer, made = BOTH[spelled]
    parser = CompletionParser(made, begin)
    parser.feed(tokenizer.encode(text))
    return parser.finish()


CALL = '<call>{"name": "f", "arguments": {"a": 1}}</call>'


@pytest.mark.parametrize("spelled", [False, True])
@pytest.mark.parametrize(
    ("text", "begin", "reasoning", "content", "calls", "invalid", "complete"),
    [
        ("hi", "undecided", None, "hi", 0, 0, True),
        ("hi \n", "undecided", None, "hi \n", 0, 0, True),
        ("<think>\nr\n</think>\nhi</s>", "undecided", "r", "hi", 0, 0, True),
        ("r\n</think>\n\nhi</s>", "open", "r", "hi", 0, 0, True),
        ("r\n</think>\nhi", "undecided", "r", "hi", 0, 0, True),
        ("r", "open", "r", "", 0, 0, False),
        ("r</s>", "open", "r", "", 0, 0, False),
        ("\n</think>\nhi", "open", None, "hi", 0, 0, True),
        ("hi", "closed", None, "hi", 0, 0, True),
        ("hi </think> there", "closed", None, "hi </think> there", 0, 0, True),
        ("<think>r</think>a<think>b</think>c", "undecided", "r", "a<think>b</think>c", 0, 0, True),
        (f"a\n{CALL}</s>", "undecided", None, "a", 1, 0, True),
        (f"a\n\n{CALL}\n{CALL}\n</s>", "undecided", None, "a\n", 2, 0, True),
        (f"need it\n{CALL}</s>", "open", "need it", "", 1, 0, True),
        (f"need it\n{CALL} so", "open", "need it", "so", 1, 0, True),
        (f"say {CALL} or\n</think>\nhi\n{CALL}</s>", "open", f"say {CALL} or", "hi", 1, 0, True),
        (f"<think>say {CALL}{CALL}</think>hi</s>", "undecided", f"say {CALL}{CALL}", "hi", 0, 0, True),
        ("say <call> first\n</think>\nhi</s>", "open", "say <call> first", "hi", 0, 0, True),
        ("say <call>{</s>", "open", "say ", "", 0, 1, True),
        ("<think>\nr\n</think>\nhi</s>", "open", "r", "hi", 0, 0, True),
        ("<think>\n<think>\nr <think> s\n</think>\nhi</s>", "undecided", "r <think> s", "hi", 0, 0, True),
        (f"{CALL} after {CALL}", "closed", None, "after ", 2, 0, True),
        (f"a {CALL} b", "closed", None, "a  b", 1, 0, True),
        ("<call>{nope</call></s>", "closed", None, "", 0, 1, True),
        ('<call>{"name": "f", "argum', "closed", None, "", 0, 1, True),
        ('<call>{"name": "f", "arguments": {}}', "closed", None, "", 1, 0, True),
        ('<call>{"name": "f", "arguments": {"a": "</call>"}}</call>x', "closed", None, "x", 1, 0, True),
        ('<call>{"name": "f", "arguments": {"a": "<call></s>', "closed", None, "", 0, 1, True),
        (f'<call>{{"a": "open</call>{CALL}', "closed", None, "", 1, 1, True),
        (f"<call>garbage{CALL}", "closed", None, "", 1, 1, True),
        ("<call></call>", "closed", None, "", 0, 1, True),
        ("", "undecided", None, "", 0, 0, True),
        ("</s>", "open", None, "", 0, 0, False),
    ],
)
def test_what_a_completion_says(
    text: str, begin: str, reasoning: str | None, content: str, calls: int, invalid: int, complete: bool, spelled: bool
) -> None:
    """Reasoning in content, a swallowed call, a lost malformed one or an executed draft each break an agent loop.

    https://github.com/PrimeIntellect-ai/renderers/pull/80 https://github.com/vllm-project/vllm/issues/39056
    https://github.com/ai-dynamo/dynamo/pull/9995
    """
    if spelled and "open</call>" in text:
        pytest.skip("the made-up text is the same in both spellings; once is enough")
    got = parse(text, ReasoningState(begin), spelled=spelled)
    assert (
        got.reasoning_content,
        got.content,
        len(got.tool_calls),
        len(got.invalid_tool_calls),
        got.reasoning_complete,
    ) == (
        reasoning,
        content,
        calls,
        invalid,
        complete,
    )


def test_a_malformed_call_keeps_its_text_and_place() -> None:
    """It must be shown to the model or the user, never run as an empty call."""
    got = parse("ok <call>{nope</call></s>", ReasoningState.CLOSED)
    (invalid,) = got.invalid_tool_calls
    assert (invalid.raw, invalid.span) == ("<call>{nope</call>", (3, 10))
    assert "invalid JSON" in invalid.error
    assert got.to_message() == {"role": "assistant", "content": "ok <call>{nope</call>"}


def test_calls_carry_a_stable_id_and_their_tokens() -> None:
    """Tool results name the id; the trainer finds the call's tokens by the span."""
    tokenizer, made = BOTH[False]
    ids = tokenizer.encode(f"a\n{CALL}</s>")
    parser = CompletionParser(made, ReasoningState.CLOSED, offset=100)
    parser.feed(ids)
    (call,) = parser.finish().tool_calls
    assert call.id == "call_102"
    assert tokenizer.decode(ids[call.span[0] : call.span[1]]) == CALL


def chunked(ids: list[int], begin: ReasoningState, made: Grammar, seed: int) -> tuple[ParsedResponse, list[Any]]:
    rng = random.Random(seed)
    parser = CompletionParser(made, begin)
    deltas: list[Any] = []
    position = 0
    while position < len(ids):
        size = 1 if seed == 0 else rng.randint(0, 5)
        deltas += parser.feed(ids[position : position + size])
        position += size
    message = parser.finish()
    return message, deltas + parser.last_deltas


@settings(max_examples=300, deadline=None)
@given(
    pieces=st.lists(st.sampled_from(PIECES), max_size=14),
    begin=st.sampled_from(list(ReasoningState)),
    spelled=st.booleans(),
    seed=st.integers(0, 5),
)
def test_any_chunking_gives_the_same_message(
    pieces: list[str], begin: ReasoningState, spelled: bool, seed: int
) -> None:
    """Streaming and whole parses must agree, down to a character cut between two chunks."""
    tokenizer, made = BOTH[spelled]
    ids = (
        tokenizer.encode_ordinary("".join(pieces))
        if spelled and "</s>" not in pieces
        else tokenizer.encode("".join(pieces))
    )
    parser = CompletionParser(made, begin)
    parser.feed(ids)
    whole = parser.finish()
    message, deltas = chunked(ids, begin, made, seed)
    assert message == whole
    assert "".join(delta.text for delta in deltas if delta.kind == "content") == whole.content
    assert "".join(delta.text for delta in deltas if delta.kind == "reasoning") == (whole.reasoning_content or "")
    assert tuple(delta.call for delta in deltas if isinstance(delta.call, ParsedToolCall)) == whole.tool_calls
    assert tuple(delta.call for delta in deltas if isinstance(delta.call, InvalidToolCall)) == whole.invalid_tool_calls


@settings(max_examples=300, deadline=None)
@given(ids=st.lists(st.integers(-3, 300), max_size=40), begin=st.sampled_from(list(ReasoningState)))
def test_no_ids_make_it_raise(ids: list[int], begin: ReasoningState) -> None:
    """An engine may send anything, also ids that the tokenizer does not know; a rollout must survive it."""
    for _, made in BOTH.values():
        parser = CompletionParser(made, begin)
        parser.feed(ids)
        parser.finish().to_message()


def test_openings_inside_an_open_value_cost_linear_time() -> None:
    """Each was answered by reading all that came before: two seconds of CPU for one collapsed completion."""
    reads = 0

    class Counting(JsonCalls):
        def read(self, region: str, tools: Any) -> Any:
            nonlocal reads
            reads += 1
            return super().read(region, tools)

    tokenizer, made = BOTH[False]
    parser = CompletionParser(replace(made, tool_codec=Counting("\n")), ReasoningState.CLOSED)
    parser.feed(tokenizer.encode('<call>{"name": "f", "arguments": {"a": "' + "<call>" * 2000 + '"}}</call>x'))
    (call,) = parser.finish().tool_calls
    assert call.arguments == {"a": "<call>" * 2000}
    assert reads < 40


def test_thousands_of_markers_do_not_exhaust_the_stack() -> None:
    """A model that has collapsed repeats one token; parsing it must stay quick and flat."""
    tokenizer, made = BOTH[False]
    for text in ("<call>", "</call>", "<think>", '<call>"', '<call>"</call>'):
        for begin in (ReasoningState.CLOSED, ReasoningState.OPEN):
            parser = CompletionParser(made, begin)
            parser.feed(tokenizer.encode(text * 2000))
            parser.finish()
