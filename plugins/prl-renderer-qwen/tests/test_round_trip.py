"""Parse inverts render; a stream in any chunks ends in the same message; no ids make parsing raise."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import pytest
from fixtures.plugin import real_tokenizer
from fixtures.turns import (
    assert_random_ids_survive,
    assert_stream_equals_parse,
    assistant_turns,
    calls_in,
    calls_of,
    sampled,
    schema_of,
    typed,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from prl import create_renderer
from prl.contracts import Renderer
from prl.testing.conversations import ORDINARY, Style

VOCABULARY = {
    "qwen3": "qwen3",
    "qwen3-instruct-2507": "qwen3",
    "qwen3-thinking-2507": "qwen3",
    "qwen3-vl": "qwen3",
    "qwen3.5": "qwen3.5",
    "qwen3.5-small": "qwen3.5",
    "qwen3.6": "qwen3.5",
}
NO_REASONING = {"qwen3-instruct-2507", "qwen3-vl"}
EDGES = Style(edge=0.6, parts=0, inline_reasoning=0, markup=())


@functools.cache
def renderer(name: str) -> Renderer:
    options = {"enable_thinking": True} if name == "qwen3.5-small" else {}
    return create_renderer(real_tokenizer(VOCABULARY[name]), name, **options)


def turn_of(name: str, message: Any) -> tuple[list[int], list[int]]:
    """Return the prompt, and ids that a model may sample after it to write this message."""
    found = sampled([renderer(name)], real_tokenizer(VOCABULARY[name]), message)
    assert found is not None
    return found[1:]


@pytest.mark.parametrize("name", VOCABULARY)
def test_parse_gives_back_what_was_rendered(name: str) -> None:
    """A turn that comes back changed makes the next prompt differ from what the model saw."""
    for message in assistant_turns(ORDINARY, 300):
        prompt, completion = turn_of(name, message)
        parsed = renderer(name).parse_response(completion, tools=schema_of(message), prompt_ids=prompt)
        reasoning = message.get("reasoning_content") or message.get("reasoning")
        assert parsed.content == message["content"]
        assert (parsed.reasoning_content or None) == (None if name in NO_REASONING else reasoning)
        assert typed(calls_of(parsed)) == typed(calls_in(message)), message
        assert parsed.invalid_tool_calls == ()


@pytest.mark.parametrize("name", VOCABULARY)
def test_a_parsed_turn_comes_back_the_same(name: str) -> None:
    """Odd white space may be normalised once; after that render and parse must agree, also on types."""
    style = replace(EDGES, reasoning=0.0) if name in NO_REASONING else EDGES
    for message in assistant_turns(style, 300):
        prompt, completion = turn_of(name, message)
        tools = schema_of(message)
        parsed = renderer(name).parse_response(completion, tools=tools, prompt_ids=prompt)
        assert typed(calls_of(parsed)) == typed(calls_in(message))
        prompt_again, again = turn_of(name, parsed.to_message())
        reparsed = renderer(name).parse_response(again, tools=tools, prompt_ids=prompt_again)
        assert (reparsed.content, reparsed.reasoning_content) == (parsed.content, parsed.reasoning_content), message
        assert typed(calls_of(reparsed)) == typed(calls_of(parsed))


FRAGMENTS = (
    "<think>",
    "</think>",
    "\n",
    "\n\n",
    "<tool_call>",
    "</tool_call>",
    '{"name": "f", "arguments": {"a": "x</tool_call>"}}',
    '{"name": "f", "arguments": {',
    "<function=f>\n<parameter=a>\n1\n</parameter>\n</function>",
    "<function=f>",
    "<parameter=a>",
    "</function>",
    "Hello ",
    "日本🙂",
    "<|im_end|>",
    "<|endoftext|>",
    "<tool_response>",
    "  ",
)
completions = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=6), max_size=12)


def _encode(name: str, parts: list[str]) -> list[int]:
    return real_tokenizer(VOCABULARY[name]).encode("".join(parts).encode("utf-8", "ignore").decode("utf-8"))


@pytest.mark.parametrize("name", ["qwen3", "qwen3.5", "qwen3-instruct-2507"])
@pytest.mark.parametrize("opened", ["", "<think>\n"])
@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(parts=completions, cuts=st.lists(st.integers(0, 400), max_size=8))
def test_any_chunking_ends_in_the_same_message(name: str, opened: str, parts: list[str], cuts: list[int]) -> None:
    """A message that depends on network timing: https://github.com/vllm-project/vllm/issues/44326"""
    prompt = _encode(name, ["<|im_start|>assistant\n", opened])
    assert_stream_equals_parse(renderer(name), _encode(name, parts), cuts, prompt)


@pytest.mark.parametrize("name", VOCABULARY)
def test_one_token_at_a_time_on_real_turns(name: str) -> None:
    """Also splits characters whose bytes lie in several tokens: https://github.com/QwenLM/Qwen3/issues/1595"""
    for message in assistant_turns(Style(parts=0), 60):
        prompt, completion = turn_of(name, message)
        assert_stream_equals_parse(renderer(name), completion, list(range(len(completion))), prompt)


@pytest.mark.parametrize("name", VOCABULARY)
def test_random_ids_never_raise_and_nothing_is_lost(name: str) -> None:
    """A young policy samples anything, padded embedding rows included; a rollout must survive it."""
    assert_random_ids_survive(renderer(name), real_tokenizer(VOCABULARY[name]), 400)
