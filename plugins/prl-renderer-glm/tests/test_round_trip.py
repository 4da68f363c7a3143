"""Parse inverts render; a stream in any chunks ends in the same message; no ids make parsing raise."""

from __future__ import annotations

import functools

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

VOCABULARY = {"glm-4.5": "glm4.5", "glm-4.7": "glm4.5", "glm-5": "glm5", "glm-5.1": "glm5", "glm-5.2": "glm5"}
EDGES = Style(edge=0.6, parts=0, inline_reasoning=0, markup=())


@functools.cache
def variants(name: str) -> tuple[Renderer, ...]:
    """Return the renderer with thinking on and off: a turn continues one of the two prompts."""
    tokenizer = real_tokenizer(VOCABULARY[name])
    return tuple(create_renderer(tokenizer, name, enable_thinking=on, close_last_turn=True) for on in (True, False))


@pytest.mark.parametrize("name", VOCABULARY)
def test_parse_gives_back_what_was_rendered(name: str) -> None:
    """A turn that comes back changed makes the next prompt differ from what the model saw."""
    for message in assistant_turns(ORDINARY, 300):
        found = sampled(variants(name), real_tokenizer(VOCABULARY[name]), message)
        assert found is not None
        renderer, prompt, completion = found
        parsed = renderer.parse_response(completion, tools=schema_of(message), prompt_ids=prompt)
        assert parsed.content == message["content"]
        assert parsed.reasoning_content == (message.get("reasoning_content") or message.get("reasoning"))
        assert typed(calls_of(parsed)) == typed(calls_in(message))
        assert parsed.invalid_tool_calls == ()


@pytest.mark.parametrize("name", VOCABULARY)
def test_a_parsed_turn_comes_back_the_same(name: str) -> None:
    """Odd white space may be normalised once; after that render and parse must agree, also on types."""
    tokenizer = real_tokenizer(VOCABULARY[name])
    for message in assistant_turns(EDGES, 300):
        found = sampled(variants(name), tokenizer, message)
        assert found is not None
        renderer, prompt, completion = found
        tools = schema_of(message)
        parsed = renderer.parse_response(completion, tools=tools, prompt_ids=prompt)
        assert typed(calls_of(parsed)) == typed(calls_in(message))
        again = sampled(variants(name), tokenizer, parsed.to_message())
        assert again is not None
        reparsed = again[0].parse_response(again[2], tools=tools, prompt_ids=again[1])
        assert (reparsed.content, reparsed.reasoning_content) == (parsed.content, parsed.reasoning_content), message
        assert typed(calls_of(reparsed)) == typed(calls_of(parsed))


FRAGMENTS = (
    *("<think>", "</think>", "\n", "\n\n", "<tool_call>", "</tool_call>", "f", "<tool_call>f</tool_call>", "Hello "),
    *("<arg_key>", "a", "</arg_key>", "<arg_value>", "</arg_value>", "<tool_response>", "/nothink", "  ", "日本🙂"),
    *(
        "f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n",
        "<arg_key>a</arg_key><arg_value>x</tool_call></arg_value>",
    ),
    *("<|user|>", "<|observation|>", "<|endoftext|>", "<|assistant|>"),
)
completions = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=6), max_size=12)


def encode(name: str, parts: list[str]) -> list[int]:
    return real_tokenizer(VOCABULARY[name]).encode("".join(parts).encode("utf-8", "ignore").decode("utf-8"))


@pytest.mark.parametrize("name", ["glm-4.5", "glm-5.1"])
@pytest.mark.parametrize("opened", ["", "<think>", "</think>"])
@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(parts=completions, cuts=st.lists(st.integers(0, 400), max_size=8))
def test_any_chunking_ends_in_the_same_message(name: str, opened: str, parts: list[str], cuts: list[int]) -> None:
    """A message that depends on network timing: https://github.com/vllm-project/vllm/issues/44326"""
    prompt = encode(name, ["<|user|>Go on.<|assistant|>", opened])
    assert_stream_equals_parse(variants(name)[0], encode(name, parts), cuts, prompt)


@pytest.mark.parametrize("name", VOCABULARY)
def test_one_token_at_a_time_on_real_turns(name: str) -> None:
    """Also splits characters whose bytes lie in several tokens."""
    for message in assistant_turns(Style(parts=0), 60):
        found = sampled(variants(name), real_tokenizer(VOCABULARY[name]), message)
        if found is not None:
            renderer, prompt, completion = found
            assert_stream_equals_parse(renderer, completion, list(range(len(completion))), prompt)


@pytest.mark.parametrize("name", VOCABULARY)
def test_random_ids_never_raise_and_nothing_is_lost(name: str) -> None:
    """A young policy samples anything, padded embedding rows included; a rollout must survive it."""
    assert_random_ids_survive(variants(name)[0], real_tokenizer(VOCABULARY[name]), 400)
