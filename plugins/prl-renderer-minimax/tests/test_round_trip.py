"""Parse inverts render; a stream in any chunks ends in the same message; no ids make parsing raise."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from fixtures.plugin import real_tokenizer
from fixtures.turns import (
    PROMPT,
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

NAMES = ("minimax-m2", "minimax-m2.5")
EDGES = Style(edge=0.6, parts=0, inline_reasoning=0, markup=())
TOKENIZER = "minimax-m2"


@functools.cache
def renderer(name: str) -> Renderer:
    return create_renderer(real_tokenizer(TOKENIZER), name)


def sampled_turn(name: str, message: Any) -> tuple[list[int], list[int]]:
    """Return the prompt and the ids sampled after it.

    The prompt has opened reasoning, so a turn without any begins with the end marker, where a render writes no block.
    """
    tokenizer = real_tokenizer(TOKENIZER)
    found = sampled([renderer(name)], tokenizer, message)
    if found is not None:
        return found[1], found[2]
    prompt = renderer(name).render_ids(PROMPT, add_generation_prompt=True)
    whole = renderer(name).render([*PROMPT, message])
    opening = tokenizer.decode(prompt).removesuffix("<think>\n")
    turn = tokenizer.decode(whole.token_ids).removesuffix("\n")
    assert turn.startswith(opening)
    return prompt, tokenizer.encode("\n</think>\n\n" + turn[len(opening) :])


@pytest.mark.parametrize("name", NAMES)
def test_parse_gives_back_what_was_rendered(name: str) -> None:
    """A turn that comes back changed makes the next prompt differ from what the model saw."""
    for message in assistant_turns(ORDINARY, 400):
        prompt, completion = sampled_turn(name, message)
        parsed = renderer(name).parse_response(completion, tools=schema_of(message), prompt_ids=prompt)
        assert parsed.content == message["content"]
        assert parsed.reasoning_content == (message.get("reasoning_content") or message.get("reasoning"))
        assert typed(calls_of(parsed)) == typed(calls_in(message))
        assert parsed.invalid_tool_calls == ()


@pytest.mark.parametrize("name", NAMES)
def test_a_parsed_turn_comes_back_the_same(name: str) -> None:
    """Odd white space may be normalised once; after that render and parse must agree, also on types."""
    for message in assistant_turns(EDGES, 400):
        tools = schema_of(message)
        prompt, completion = sampled_turn(name, message)
        parsed = renderer(name).parse_response(completion, tools=tools, prompt_ids=prompt)
        assert typed(calls_of(parsed)) == typed(calls_in(message))
        prompt, again = sampled_turn(name, parsed.to_message())
        reparsed = renderer(name).parse_response(again, tools=tools, prompt_ids=prompt)
        assert (reparsed.content, reparsed.reasoning_content) == (parsed.content, parsed.reasoning_content), message
        assert typed(calls_of(reparsed)) == typed(calls_of(parsed))


FRAGMENTS = (
    *("<think>", "</think>", "\n", "\n\n", "<minimax:tool_call>", "</minimax:tool_call>", "Hello ", "  ", "日本🙂"),
    *('<invoke name="f">', "</invoke>", '<parameter name="a">', "</parameter>", "1", "[e~[", "]~b]", "]~!b["),
    '<invoke name="f">\n<parameter name="a">x</parameter>\n</invoke>\n',
    '<parameter name="a">x</minimax:tool_call></parameter>',
)
completions = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=6), max_size=12)


def encode(parts: list[str]) -> list[int]:
    return real_tokenizer(TOKENIZER).encode("".join(parts).encode("utf-8", "ignore").decode("utf-8"))


@pytest.mark.parametrize("opened", ["", "<think>\n", "<think>\n</think>"])
@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(parts=completions, cuts=st.lists(st.integers(0, 400), max_size=8))
def test_any_chunking_ends_in_the_same_message(opened: str, parts: list[str], cuts: list[int]) -> None:
    """A message that depends on network timing: https://github.com/vllm-project/vllm/issues/44326"""
    assert_stream_equals_parse(renderer("minimax-m2"), encode(parts), cuts, encode(["]~b]ai\n", opened]))


@pytest.mark.parametrize("name", NAMES)
def test_one_token_at_a_time_on_real_turns(name: str) -> None:
    """Also splits characters whose bytes lie in several tokens."""
    for message in assistant_turns(Style(parts=0), 100):
        prompt, completion = sampled_turn(name, message)
        assert_stream_equals_parse(renderer(name), completion, list(range(len(completion))), prompt)


def test_random_ids_never_raise_and_nothing_is_lost() -> None:
    """A young policy samples anything, padded embedding rows included; a rollout must survive it."""
    assert_random_ids_survive(renderer("minimax-m2"), real_tokenizer(TOKENIZER), 600)
