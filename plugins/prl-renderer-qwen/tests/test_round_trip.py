"""Parse inverts render; a stream in any chunks ends in the same message; no ids make parsing raise."""

from __future__ import annotations

import functools
import itertools
import json
import random
import unicodedata
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from fixtures.plugin import real_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from prl import create_renderer
from prl.contracts import Renderer
from prl.testing.conversations import ORDINARY, Style, generate_assistant
from prl.types import ParsedResponse

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
PROMPT: list[Any] = [{"role": "user", "content": "Go on."}]
EDGES = Style(edge=0.6, parts=0, inline_reasoning=0, markup=())
JSON_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}


@functools.cache
def renderer(name: str) -> Renderer:
    options = {"enable_thinking": True} if name == "qwen3.5-small" else {}
    return create_renderer(real_tokenizer(VOCABULARY[name]), name, **options)


def sampled(name: str, message: Any) -> tuple[list[int], list[int]]:
    """Return the prompt, and ids that a model may sample after it to write this message.

    They are encoded apart from the prompt, as a model samples them: a line feed at the border does not merge.
    """
    tokenizer = real_tokenizer(VOCABULARY[name])
    prompt = renderer(name).render_ids(PROMPT, add_generation_prompt=True)
    whole = renderer(name).render([*PROMPT, message])
    last = max(n for n, on in enumerate(whole.sampled_mask) if on)
    opening, text = tokenizer.decode(prompt), tokenizer.decode(whole.token_ids[: last + 1])
    assert text.startswith(opening)
    return prompt, tokenizer.encode(text[len(opening) :])


def schema_of(message: Any) -> list[Any]:
    """Describe the calls' arguments by their own types: what an untyped format needs to give them back."""
    return [
        {
            "type": "function",
            "function": {
                "name": call["function"]["name"],
                "parameters": {
                    "type": "object",
                    "properties": {
                        key: {"type": JSON_TYPES.get(type(value), "null")}
                        for key, value in call["function"]["arguments"].items()
                    },
                },
            },
        }
        for call in message.get("tool_calls") or ()
    ]


def messages_with_one_call_name_each(style: Style, count: int) -> Iterator[Any]:
    """Yield assistant turns in NFC, as Qwen's tokenizers make them; each call has its own name and schema."""
    for seed in range(count):
        message: Any = generate_assistant(seed, style)
        for number, call in enumerate(message.get("tool_calls") or ()):
            call["function"]["name"] += str(number)
            call["function"]["arguments"] = _as_mapping(call["function"]["arguments"])
        yield json.loads(unicodedata.normalize("NFC", json.dumps(message, ensure_ascii=False)))


def _as_mapping(arguments: Any) -> Any:
    return json.loads(arguments) if isinstance(arguments, str) else arguments


def typed(value: Any) -> Any:
    """Make 1, 1.0 and True differ in comparisons."""
    if isinstance(value, dict):
        return {key: typed(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [typed(inner) for inner in value]
    return type(value).__name__, value


def calls(parsed: ParsedResponse) -> list[Any]:
    return [(call.name, typed(call.arguments)) for call in parsed.tool_calls]


@pytest.mark.parametrize("name", VOCABULARY)
def test_parse_gives_back_what_was_rendered(name: str) -> None:
    """A turn that comes back changed makes the next prompt differ from what the model saw."""
    for message in messages_with_one_call_name_each(ORDINARY, 300):
        prompt, completion = sampled(name, message)
        parsed = renderer(name).parse_response(completion, tools=schema_of(message), prompt_ids=prompt)
        reasoning = message.get("reasoning_content") or message.get("reasoning")
        wanted = message.get("tool_calls") or ()
        assert parsed.content == message["content"]
        assert (parsed.reasoning_content or None) == (None if name in NO_REASONING else reasoning)
        assert calls(parsed) == [(call["function"]["name"], typed(call["function"]["arguments"])) for call in wanted], (
            message
        )
        assert parsed.invalid_tool_calls == ()


@pytest.mark.parametrize("name", VOCABULARY)
def test_a_parsed_turn_comes_back_the_same(name: str) -> None:
    """Odd white space may be normalised once; after that render and parse must agree, also on types."""
    style = replace(EDGES, reasoning=0.0) if name in NO_REASONING else EDGES
    for message in messages_with_one_call_name_each(style, 300):
        prompt, completion = sampled(name, message)
        tools = schema_of(message)
        parsed = renderer(name).parse_response(completion, tools=tools, prompt_ids=prompt)
        assert calls(parsed) == [
            (call["function"]["name"], typed(call["function"]["arguments"])) for call in message.get("tool_calls") or ()
        ]
        prompt_again, again = sampled(name, parsed.to_message())
        reparsed = renderer(name).parse_response(again, tools=tools, prompt_ids=prompt_again)
        assert (reparsed.content, reparsed.reasoning_content) == (parsed.content, parsed.reasoning_content), message
        assert calls(reparsed) == calls(parsed)


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


def _assert_stream_equals_parse(name: str, ids: list[int], cuts: list[int], prompt: list[int]) -> None:
    whole = renderer(name).parse_response(ids, prompt_ids=prompt)
    stream = renderer(name).stream_parser(prompt_ids=prompt)
    edges = [0, *sorted({cut % (len(ids) + 1) for cut in cuts}), len(ids)]
    chunks = [ids[begin:end] for begin, end in itertools.pairwise(edges)]
    deltas = [delta for chunk in chunks for delta in stream.feed(chunk)]
    final = stream.finish()
    assert final == whole
    assert whole.content.startswith("".join(delta.text for delta in deltas if delta.kind == "content"))
    assert (whole.reasoning_content or "").startswith(
        "".join(delta.text for delta in deltas if delta.kind == "reasoning")
    )
    streamed = tuple(delta.call for delta in deltas if delta.kind == "tool_call")
    assert whole.tool_calls[: len(streamed)] == streamed


@pytest.mark.parametrize("name", ["qwen3", "qwen3.5", "qwen3-instruct-2507"])
@pytest.mark.parametrize("opened", ["", "<think>\n"])
@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(parts=completions, cuts=st.lists(st.integers(0, 400), max_size=8))
def test_any_chunking_ends_in_the_same_message(name: str, opened: str, parts: list[str], cuts: list[int]) -> None:
    """A message that depends on network timing: https://github.com/vllm-project/vllm/issues/44326"""
    prompt = _encode(name, ["<|im_start|>assistant\n", opened])
    _assert_stream_equals_parse(name, _encode(name, parts), cuts, prompt)


@pytest.mark.parametrize("name", VOCABULARY)
def test_one_token_at_a_time_on_real_turns(name: str) -> None:
    """Also splits characters whose bytes lie in several tokens: https://github.com/QwenLM/Qwen3/issues/1595"""
    for message in messages_with_one_call_name_each(Style(parts=0), 60):
        prompt, completion = sampled(name, message)
        _assert_stream_equals_parse(name, completion, list(range(len(completion))), prompt)


@pytest.mark.parametrize("name", VOCABULARY)
def test_random_ids_never_raise_and_nothing_is_lost(name: str) -> None:
    """A young policy samples anything, padded embedding rows included; a rollout must survive it."""
    tokenizer = real_tokenizer(VOCABULARY[name])
    control = sorted(tokenizer.added_tokens.values())
    rng = random.Random(7)
    for _ in range(400):
        ids = [
            rng.choice(control) if rng.random() < 0.4 else rng.randrange(tokenizer.vocab_size + 200)
            for _ in range(rng.randrange(24))
        ]
        parsed = renderer(name).parse_response(ids, prompt_ids=rng.sample(control, 2))
        message: Any = parsed.to_message()
        assert isinstance(message["content"], str)
        _assert_stream_equals_parse(name, ids, [rng.randrange(25) for _ in range(3)], [])
