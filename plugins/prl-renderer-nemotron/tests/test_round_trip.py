"""Parse inverts render, bridges equal renders, a stream in any chunks ends in the same message, no ids raise."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import pytest
from fixtures.plugin import real_tokenizer
from fixtures.turns import (
    assert_bridges_equal_renders,
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

NAMES = ("nemotron-3-nano", "nemotron-3-super", "nemotron-3-ultra", "nemotron-3.5")
EDGES = Style(edge=0.6, parts=0, inline_reasoning=0, markup=())


def tokenizer() -> Any:
    return real_tokenizer("nemotron-3")


@functools.cache
def variants(name: str, **options: Any) -> tuple[Renderer, ...]:
    """Return the renderer with thinking on and off: a turn continues one of the two prompts."""
    return tuple(create_renderer(tokenizer(), name, enable_thinking=on, **options) for on in (True, False))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("style", [ORDINARY, EDGES], ids=["ordinary", "edges"])
def test_parse_gives_back_what_was_rendered(name: str, style: Style) -> None:
    """A turn that comes back changed makes the next prompt differ from what the model saw.

    The template trims the end of content, and drops blank reasoning; all else comes back to the letter.
    """
    for message in assistant_turns(style, 300):
        found = sampled(variants(name), tokenizer(), message)
        assert found is not None
        renderer, prompt, completion = found
        parsed = renderer.parse_response(completion, tools=schema_of(message), prompt_ids=prompt)
        reasoning = message.get("reasoning_content") or message.get("reasoning") or ""
        assert parsed.content == (message["content"] or "").rstrip(), message
        assert (parsed.reasoning_content or "") == (reasoning if reasoning.strip() else "")
        assert typed(calls_of(parsed)) == typed(calls_in(message))
        assert parsed.invalid_tool_calls == ()
        again = sampled((renderer,), tokenizer(), parsed.to_message())
        assert again is not None
        assert again[2] == completion


@pytest.mark.parametrize("options", [{}, {"truncate_history_thinking": False}, {"thinking_retention": "all"}])
@pytest.mark.parametrize("name", NAMES)
def test_bridges_equal_renders(name: str, options: dict[str, Any]) -> None:
    """A bridge that differs from the render trains on a prompt no engine would see; one too few costs a prefix."""
    style = replace(ORDINARY, late_system=0.1, null=0.1, parts=0.1)
    bridged, refused = assert_bridges_equal_renders(variants(name, **options), style, 150, seed=4)
    assert bridged > 50
    assert (refused == 0) == bool(options)


FRAGMENTS = (
    *("<think>", "</think>", "\n", "\n\n", "<tool_call>", "</tool_call>", "Hello ", "日本🙂", "<|im_end|>", "</s>"),
    *("<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n", "<function=f>", "<parameter=a>", "</function>"),
    *("</parameter>", "<tool_response>", "  ", "<|im_start|>", "x</tool_call>", "\n<function=g>\n</function>\n"),
)
completions = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=6), max_size=12)


def encode(parts: list[str]) -> list[int]:
    ids: list[int] = tokenizer().encode("".join(parts).encode("utf-8", "ignore").decode("utf-8"))
    return ids


@pytest.mark.parametrize("name", ["nemotron-3-nano", "nemotron-3.5"])
@pytest.mark.parametrize("opened", ["", "<think>\n", "<think></think>"])
@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(parts=completions, cuts=st.lists(st.integers(0, 400), max_size=8))
def test_any_chunking_ends_in_the_same_message(name: str, opened: str, parts: list[str], cuts: list[int]) -> None:
    """A message that depends on network timing: https://github.com/vllm-project/vllm/issues/44326"""
    prompt = encode(["<|im_start|>assistant\n", opened])
    assert_stream_equals_parse(variants(name)[0], encode(parts), cuts, prompt)


@pytest.mark.parametrize("name", NAMES)
def test_one_token_at_a_time_on_real_turns(name: str) -> None:
    """Also splits characters whose bytes lie in several tokens."""
    for message in assistant_turns(Style(parts=0, inline_reasoning=0), 60):
        found = sampled(variants(name), tokenizer(), message)
        if found is not None:
            renderer, prompt, completion = found
            assert_stream_equals_parse(renderer, completion, list(range(len(completion))), prompt)


@pytest.mark.parametrize("name", NAMES)
def test_random_ids_never_raise(name: str) -> None:
    """A young policy samples anything, padded embedding rows included; a rollout must survive it."""
    control = sorted(tokenizer().added_tokens.values())[:20]
    assert_random_ids_survive(variants(name)[0], tokenizer(), 400, control)
