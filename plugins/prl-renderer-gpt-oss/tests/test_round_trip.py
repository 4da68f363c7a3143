"""Parse inverts render; a stream in any chunks ends in the same message; no ids make parsing raise."""

from __future__ import annotations

import functools
import itertools
import json
import random
import re
from collections.abc import Iterator
from typing import Any

import pytest
from fixtures.plugin import real_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from prl import create_renderer
from prl.contracts import Renderer
from prl.testing.conversations import ORDINARY, Style, generate_assistant
from prl.types import ParsedResponse

LAYOUTS = ("harmony", "template")
PROMPT: list[Any] = [{"role": "user", "content": "Go on."}]
EDGES = Style(edge=0.6, parts=0, inline_reasoning=0, markup=())


@functools.cache
def renderer(layout: str) -> Renderer:
    return create_renderer(real_tokenizer("gpt-oss"), "gpt-oss", layout=layout, conversation_start_date="2026-01-02")


def sampled(layout: str, message: Any) -> tuple[list[int], list[int]]:
    """Return the prompt, and the ids that a model samples after it to write this message."""
    prompt = renderer(layout).render_ids(PROMPT, add_generation_prompt=True)
    whole = renderer(layout).render([*PROMPT, message])
    assert whole.token_ids[: len(prompt)] == prompt
    assert all(whole.sampled_mask[len(prompt) :])
    return prompt, whole.token_ids[len(prompt) :]


def messages(layout: str, style: Style, count: int) -> Iterator[Any]:
    """Yield assistant turns with at most one call: after one, the model waits for the result."""
    for seed in range(count):
        message: Any = generate_assistant(seed, style)
        if message.get("tool_calls"):
            [function] = [call["function"] for call in message["tool_calls"][:1]]
            if isinstance(function["arguments"], str):
                function["arguments"] = json.loads(function["arguments"])
            message["tool_calls"] = message["tool_calls"][:1]
            if layout == "template":
                message["content"] = ""
        yield message


def typed(value: Any) -> Any:
    """Make 1, 1.0 and True differ in comparisons."""
    if isinstance(value, dict):
        return {key: typed(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [typed(inner) for inner in value]
    return type(value).__name__, value


def calls(parsed: ParsedResponse) -> list[Any]:
    return [(call.name, typed(call.arguments)) for call in parsed.tool_calls]


@pytest.mark.parametrize("style", [ORDINARY, EDGES], ids=["ordinary", "edges"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_parse_gives_back_what_was_rendered(layout: str, style: Style) -> None:
    """A turn that comes back changed makes the next prompt differ from what the model saw."""
    for message in messages(layout, style, 400):
        prompt, completion = sampled(layout, message)
        parsed = renderer(layout).parse_response(completion, prompt_ids=prompt)
        wanted = [call["function"] for call in message.get("tool_calls") or ()]
        assert parsed.content == (message["content"] or "")
        assert (parsed.reasoning_content or "") == (message.get("reasoning_content") or message.get("reasoning") or "")
        assert calls(parsed) == [(call["name"], typed(call["arguments"])) for call in wanted], message
        assert parsed.invalid_tool_calls == ()
        assert parsed.reasoning_complete
        assert sampled(layout, parsed.to_message()) == (prompt, completion) or message.get("reasoning_content") == ""


FRAGMENTS = (
    "<|start|>assistant",
    "<|start|>",
    "<|channel|>analysis<|message|>",
    "<|channel|>final<|message|>",
    "<|channel|>commentary to=functions.f <|constrain|>json<|message|>",
    " to=functions.f<|channel|>commentary json<|message|>",
    "<|channel|>",
    "<|message|>",
    "<|constrain|>",
    '{"a": "x"}',
    '{"a": ',
    "<|end|>",
    "<|call|>",
    "<|return|>",
    "<|endoftext|>",
    "<|start|>user<|message|>",
    "commentary?? junk",
    " to=",
    "Hello ",
    "日本🙂",
    "\n",
    "  ",
)
completions = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=6), max_size=12)


def _encode(parts: list[str]) -> list[int]:
    return real_tokenizer("gpt-oss").encode("".join(parts).encode("utf-8", "ignore").decode("utf-8"))


def _assert_stream_equals_parse(ids: list[int], cuts: list[int], prompt: list[int] | None) -> ParsedResponse:
    whole = renderer("harmony").parse_response(ids, prompt_ids=prompt)
    stream = renderer("harmony").stream_parser(prompt_ids=prompt)
    edges = [0, *sorted({cut % (len(ids) + 1) for cut in cuts}), len(ids)]
    deltas = [delta for begin, end in itertools.pairwise(edges) for delta in stream.feed(ids[begin:end])]
    assert stream.finish() == whole
    deltas += stream.last_deltas
    assert "".join(delta.text for delta in deltas if delta.kind == "content") == whole.content
    assert "".join(delta.text for delta in deltas if delta.kind == "reasoning") == (whole.reasoning_content or "")
    assert tuple(delta.call for delta in deltas if delta.kind == "tool_call") == whole.tool_calls
    assert tuple(delta.call for delta in deltas if delta.kind == "invalid_tool_call") == whole.invalid_tool_calls
    return whole


@pytest.mark.parametrize("opened", ["", "<|channel|>analysis<|message|>", "<|channel|>commentary to=functions.f"])
@settings(max_examples=250, deadline=None, derandomize=True, database=None)
@given(parts=completions, cuts=st.lists(st.integers(0, 400), max_size=8))
def test_any_chunking_ends_in_the_same_message(opened: str, parts: list[str], cuts: list[int]) -> None:
    """A message that depends on network timing: https://github.com/vllm-project/vllm/issues/44326"""
    _assert_stream_equals_parse(_encode(parts), cuts, _encode(["<|start|>assistant", opened]))


def test_one_token_at_a_time_on_real_turns() -> None:
    """Also splits characters whose bytes lie in several tokens."""
    for message in messages("harmony", Style(parts=0), 60):
        prompt, completion = sampled("harmony", message)
        _assert_stream_equals_parse(completion, list(range(len(completion))), prompt)


def test_random_ids_never_raise() -> None:
    """A young policy samples anything, padded embedding rows included; a rollout must survive it."""
    tokenizer = real_tokenizer("gpt-oss")
    control = sorted(tokenizer.added_tokens.values())
    rng = random.Random(7)
    for _ in range(600):
        ids = [
            rng.choice(control) if rng.random() < 0.4 else rng.randrange(tokenizer.vocab_size + 200)
            for _ in range(rng.randrange(24))
        ]
        prompt = rng.choice([None, [], rng.sample(control, 2)])
        parsed = _assert_stream_equals_parse(ids, [rng.randrange(25) for _ in range(3)], prompt)
        message: Any = parsed.to_message()
        assert isinstance(message["content"], str)


WORDS = ("alpha", "bravo", "charlie", "delta")
CHANNELS = ("<|channel|>analysis ", "<|channel|>final ", "<|channel|>final")


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(parts=st.lists(st.sampled_from(CHANNELS) | st.sampled_from(FRAGMENTS) | st.sampled_from(WORDS), max_size=10))
def test_no_word_before_the_stop_is_lost(parts: list[str]) -> None:
    """Text that vanishes between completion and message is never seen by a judge, and never trained right."""
    text = "".join(parts)
    whole = renderer("harmony").parse_response(_encode(parts))
    message = whole.to_message()
    kept = json.dumps(message, ensure_ascii=False) + (whole.reasoning_content or "")
    kept += "".join(call.name + json.dumps(call.arguments) for call in whole.tool_calls)
    for stop in ("<|call|>", "<|return|>", "<|endoftext|>"):
        text = text.split(stop)[0]
    for body in re.split(r"<\|(?:message|channel)\|>", text)[1:]:
        for word in WORDS:
            if word in body.split("<|")[0]:
                assert word in kept
