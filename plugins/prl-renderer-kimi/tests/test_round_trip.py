"""Parse inverts render, bridges equal renders, a stream in any chunks ends in the same message, no ids raise."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest
from fixtures.plugin import real_tokenizer
from fixtures.turns import (
    PROMPT,
    assert_bridges_equal_renders,
    assert_random_ids_survive,
    assert_stream_equals_parse,
    assistant_turns,
    calls_in,
    calls_of,
    sampled,
    typed,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from prl import create_renderer
from prl.contracts import Renderer
from prl.testing.conversations import ORDINARY, Style

NAMES = ("kimi-k2", "kimi-k2-thinking", "kimi-k2.5", "kimi-k2.6")
NO_REASONING = {"kimi-k2"}
EDGES = Style(edge=0.6, parts=0, inline_reasoning=0, markup=())


def tokenizer() -> Any:
    return real_tokenizer("kimi-k2")


@functools.cache
def variants(name: str, retention: str | None = "all") -> tuple[Renderer, ...]:
    """Return the renderer with thinking on and off, where it can be off."""
    options: dict[str, Any] = {"thinking_retention": retention} if retention else {}
    switches: list[dict[str, Any]] = [{}, {"thinking": False}] if "k2." in name else [{}]
    return tuple(create_renderer(tokenizer(), name, **options, **switch) for switch in switches)


def turns(style: Style, count: int) -> Iterator[Any]:
    """Yield assistant turns whose call ids name the function, as Kimi's do."""
    for message in assistant_turns(style, count):
        for n, call in enumerate(message.get("tool_calls") or ()):
            call["id"] = f"functions.{call['function']['name']}:{n}"
        yield message


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("style", [ORDINARY, EDGES], ids=["ordinary", "edges"])
def test_parse_gives_back_what_was_rendered(name: str, style: Style) -> None:
    """A turn that comes back changed makes the next prompt differ from what the model saw.

    The format strips nothing: the white space around reasoning and content comes back to the letter.
    """
    for message in turns(style, 300):
        found = sampled(variants(name), tokenizer(), message)
        assert found is not None
        renderer, prompt, completion = found
        parsed = renderer.parse_response(completion, prompt_ids=prompt)
        reasoning = message.get("reasoning_content") or message.get("reasoning") or None
        is_blank = not (reasoning or "").strip()  # white space alone is no reasoning
        assert parsed.content == (message["content"] or ""), message
        assert parsed.reasoning_content == (None if name in NO_REASONING or is_blank else reasoning)
        assert typed(calls_of(parsed)) == typed(calls_in(message))
        assert [call.id for call in parsed.tool_calls] == [call["id"] for call in message.get("tool_calls") or ()]
        assert parsed.invalid_tool_calls == ()
        if reasoning is None or not is_blank:
            assert renderer.render_ids([*PROMPT, parsed.to_message()]) == renderer.render_ids([*PROMPT, message])


@pytest.mark.parametrize("retention", [None, "tool_cycle", "all"])
@pytest.mark.parametrize("name", NAMES)
def test_bridges_equal_renders(name: str, retention: str | None) -> None:
    """A bridge that differs from the render trains on a prompt no engine would see; one too few costs a prefix."""
    style = Style(edge=0.1, inline_reasoning=0, markup=(), disorder=0)
    bridged, refused = assert_bridges_equal_renders(variants(name, retention), style, 150, seed=4)
    assert bridged > 50
    # Unset, the template empties an answer as soon as it is rendered: what it would refuse is in test_vectors.py.
    assert (refused > 0) == (retention == "tool_cycle" and name not in NO_REASONING)


SECTION = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CALL = '<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": "x"}<|tool_call_end|>'
FRAGMENTS = (
    *("<think>", "</think>", "\n", "  ", "Hello ", "日本🙂", "<|im_end|>", "[EOS]", "<|im_middle|>", *SECTION),
    *("<|tool_call_section_begin|>", "<|tool_call_section_end|>", "<|tool_call_section_b", CALL, SECTION[0] + CALL),
    *("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>", "functions.f:0", "f", '{"a": "'),
    *('{"a": "<|tool_call_end|>"}', '{"a": "x<|tool_calls_section_end|>"}', '"', "{}", "## Return of "),
)
completions = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=6), max_size=14)


def encode(parts: list[str]) -> list[int]:
    ids: list[int] = tokenizer().encode("".join(parts).encode("utf-8", "ignore").decode("utf-8"))
    return ids


@pytest.mark.parametrize("name", ["kimi-k2", "kimi-k2-thinking", "kimi-k2.5"])
@pytest.mark.parametrize("opened", ["", "<think>", "<think></think>"])
@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(parts=completions, cuts=st.lists(st.integers(0, 400), max_size=8))
def test_any_chunking_ends_in_the_same_message(name: str, opened: str, parts: list[str], cuts: list[int]) -> None:
    """A message that depends on network timing: https://github.com/vllm-project/vllm/issues/44326"""
    prompt = encode(["<|im_assistant|>assistant<|im_middle|>", opened])
    assert_stream_equals_parse(variants(name)[0], encode(parts), cuts, prompt)


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(parts=completions)
def test_nothing_a_model_writes_is_lost(parts: list[str]) -> None:
    """A malformed call stays, with its text: what is in no well-formed call is in the message."""
    text = "".join(parts).encode("utf-8", "ignore").decode("utf-8").split("<|im_end|>")[0].split("[EOS]")[0]
    parsed = variants("kimi-k2")[0].parse_response(encode([text]), prompt_ids=encode(["<|im_middle|>"]))
    kept = parsed.content + "".join(call.raw for call in parsed.invalid_tool_calls)
    kept += "".join(call.id + str(call.arguments) for call in parsed.tool_calls)
    for letter in "H日🙂R":  # letters that stand in no marker
        assert kept.count(letter) >= text.count(letter), (text, parsed)


@pytest.mark.parametrize("name", NAMES)
def test_one_token_at_a_time_on_real_turns(name: str) -> None:
    """Also splits characters whose bytes lie in several tokens."""
    for message in turns(Style(parts=0), 60):
        found = sampled(variants(name), tokenizer(), message)
        assert found is not None
        renderer, prompt, completion = found
        assert_stream_equals_parse(renderer, completion, list(range(len(completion))), prompt)


@pytest.mark.parametrize("name", NAMES)
def test_random_ids_never_raise(name: str) -> None:
    """A young policy samples anything, padded embedding rows included; a rollout must survive it."""
    control = [token for token in sorted(tokenizer().added_tokens.values()) if token <= 163_607]
    assert_random_ids_survive(variants(name)[0], tokenizer(), 400, control)
