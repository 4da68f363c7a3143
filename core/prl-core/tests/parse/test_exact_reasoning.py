"""Formats that strip nothing (`strip=""`): only the template's own white space around the markers goes, once."""

from __future__ import annotations

import pytest

from prl.parse import CompletionParser, Grammar, ReasoningState, TaggedReasoning
from prl.testing.byte_tokenizer import ByteTokenizer
from prl.tokenizer import as_tokenizer

MARKERS = ("<think>", "</think>")
EXACT = TaggedReasoning(after_close="\n", strip="", content_strip="")
UNDECIDED, OPEN, INSIDE = ReasoningState.UNDECIDED, ReasoningState.OPEN, "inside"


@pytest.mark.parametrize("chunk", [1, 1000])
@pytest.mark.parametrize(
    ("begin", "text", "reasoning", "content"),
    [
        (OPEN, "a\n</think>\nb", "a", "b"),
        (OPEN, "a\n\n</think>\n\nb\n", "a\n", "\nb\n"),
        (OPEN, "\n\na </think> b", "\na ", " b"),
        (INSIDE, "\n\na </think> b", "\n\na ", " b"),  # the prompt already holds the line feed behind <think>
        (OPEN, "\n</think>\n", None, ""),
        (INSIDE, "\n \n</think>\n", None, ""),  # white space alone is no reasoning
        (OPEN, "a\n", "a\n", ""),  # cut off: nobody knows whether the line feed is the template's
        (UNDECIDED, "<think>\n\na\n</think>\n b", "\na", " b"),
        (UNDECIDED, "\nb\n", None, "\nb\n"),
    ],
)
def test_text_comes_back_to_the_letter(
    begin: ReasoningState | str, text: str, reasoning: str | None, content: str, chunk: int
) -> None:
    """More or less stripping than the template's makes the next prompt differ from what was sampled."""
    tokenizer = as_tokenizer(ByteTokenizer(("<s>", "</s>", *MARKERS)))
    tokens = tokenizer.added_tokens
    grammar = Grammar.build(
        tokenizer, opener=tokens["<s>"], stop_ids=[tokens["</s>"]], reasoning=EXACT, tool_codec=None, content_strip=""
    )
    prompt = [tokens["<s>"], tokens["<think>"], *tokenizer.encode("\n" if begin == INSIDE else "")]
    is_inside = grammar.ends_behind_marker(prompt)
    state = begin if isinstance(begin, ReasoningState) else OPEN
    parser, ids = CompletionParser(grammar, state, is_inside=is_inside), tokenizer.encode(text)
    for start in range(0, len(ids), chunk):
        parser.feed(ids[start : start + chunk])
    parsed = parser.finish()
    assert (parsed.reasoning_content, parsed.content) == (reasoning, content)
