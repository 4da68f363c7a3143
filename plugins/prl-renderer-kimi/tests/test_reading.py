"""Bug reports about reading completions, turned into small inputs with the right answer, on the real vocabulary."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fixtures.plugin import real_tokenizer, vendor_tokenizer
from fixtures.turns import calls_of, tool

from prl import create_renderer
from prl.plugin import create

BEGIN, ARGUMENT, END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"


def ids_of(text: str) -> list[int]:
    return list(vendor_tokenizer("kimi-k2").encode(text, add_special_tokens=False).ids)


def parse(completion: str, *, name: str = "kimi-k2", opened: str = "", tools: Any = None) -> Any:
    renderer = create_renderer(real_tokenizer("kimi-k2"), name)
    prompt_ids = ids_of("<|im_assistant|>assistant<|im_middle|>" + opened)
    return renderer.parse_response(ids_of(completion), tools=tools, prompt_ids=prompt_ids)


def section(*calls: tuple[str, str]) -> str:
    written = "".join(f"{BEGIN}{call_id}{ARGUMENT}{arguments}{END}" for call_id, arguments in calls)
    return f"<|tool_calls_section_begin|>{written}<|tool_calls_section_end|>"


def test_call_ids_with_hyphens_and_two_calls() -> None:
    """https://github.com/vllm-project/vllm/pull/22149 https://github.com/vllm-project/vllm/issues/24478"""
    calls = section(("functions.find-file:0", '{"p": "*.md"}'), ("functions.find-file:1", '{"p": "*.txt"}'))
    parsed = parse(f"Two looks.{calls}<|im_end|>", tools=[tool("find-file", p="string")])
    assert parsed.content == "Two looks."
    assert [(found.name, found.arguments, found.id) for found in parsed.tool_calls] == [
        ("find-file", {"p": "*.md"}, "functions.find-file:0"),
        ("find-file", {"p": "*.txt"}, "functions.find-file:1"),
    ]


@pytest.mark.parametrize(
    ("call_id", "name"),
    [
        ("functions.find-file: 2", "find-file"),
        ("find-file:3", "find-file"),
        ("functions.math.add:0", "math.add"),
        (" functions.find-file:4 ", "find-file"),
        ("functions.find-file", "find-file"),
        ("find-file", "find-file"),
    ],
)
def test_call_ids_in_other_forms(call_id: str, name: str) -> None:
    """A crash on ids without the prefix, an empty list for ids with a blank; the id stays what was sampled.

    https://github.com/vllm-project/vllm/pull/27565 https://github.com/ggml-org/llama.cpp/pull/17376
    """
    parsed = parse(section((call_id, '{"p": "x"}')) + "<|im_end|>", tools=[tool("find-file", p="string")])
    assert [(found.name, found.arguments, found.id) for found in parsed.tool_calls] == [
        (name, {"p": "x"}, call_id.strip())
    ]


def test_section_markers_in_the_singular() -> None:
    """They arrive as plain text: https://github.com/exo-explore/exo/pull/2282"""
    text = section(("functions.find-file:4", '{"p": "z"}')).replace("tool_calls_section", "tool_call_section")
    parsed = parse(text + "<|im_end|>")
    assert parsed.content == ""
    assert calls_of(parsed) == [("find-file", {"p": "z"})]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (section(("call_1", "{}")), "names no function"),
        (section(("functions.f:0", "{")), "JSON"),
        (section(("functions.f:0", "")), "JSON"),
        (section(("functions.f:0", "[1]")), "object"),
        (f"<|tool_calls_section_begin|>{BEGIN}functions.f:0{ARGUMENT}{{}}", "<|tool_call_end|> is missing"),
        (f"<|tool_calls_section_begin|>{BEGIN}functions.f:0{END}<|tool_calls_section_end|>", "begin|> is missing"),
        ("<|tool_calls_section_begin|>call f<|tool_calls_section_end|>", "outside"),
        ("<|tool_calls_section_begin|><|tool_calls_section_end|>", "no call"),
    ],
)
def test_a_malformed_call_is_kept_and_never_executed(text: str, error: str) -> None:
    """An empty call list, or a call with {}: the environment then answers something the model never wrote."""
    parsed = parse(f"Look.{text}<|im_end|>")
    assert parsed.tool_calls == ()
    assert [invalid.raw for invalid in parsed.invalid_tool_calls] == [text]
    assert error in parsed.invalid_tool_calls[0].error
    assert parsed.to_message()["content"] == f"Look.{text}"


def test_a_malformed_call_does_not_take_its_neighbours_along() -> None:
    """One open quote in the first call must not swallow the second."""
    parsed = parse(section(("functions.f:0", '{"a": "x}'), ("functions.g:1", '{"b": "y"}')) + "<|im_end|>")
    assert calls_of(parsed) == [("g", {"b": "y"})]
    assert [invalid.raw for invalid in parsed.invalid_tool_calls] == [f'{BEGIN}functions.f:0{ARGUMENT}{{"a": "x}}{END}']


def test_markers_inside_a_json_string_are_text() -> None:
    """A model that writes about its own format."""
    value = f"{END}<|tool_calls_section_end|>{BEGIN}"
    parsed = parse(section(("functions.note:0", f'{{"text": "{value}"}}')) + "<|im_end|>")
    assert calls_of(parsed) == [("note", {"text": value})]


def test_apostrophes_and_surrogate_pairs() -> None:
    """https://github.com/NousResearch/atropos/issues/478 https://github.com/agent0ai/agent-zero/issues/1773"""
    calls = section(
        ("functions.ask:0", '{"q": "where\'s the baker\'s van?"}'),
        ("functions.post:1", r'{"text": "\u4f60\u597d \ud83e\udd89 \u00e9"}'),
    )
    assert calls_of(parse(calls + "<|im_end|>")) == [
        ("ask", {"q": "where's the baker's van?"}),
        ("post", {"text": "你好 🦉 é"}),
    ]


def test_arguments_in_quotes_are_read() -> None:
    """The arguments twice encoded: https://github.com/MoonshotAI/Kimi-K2/issues/26"""
    calls = section(("functions.todo:1", json.dumps(json.dumps({"todos": [{"id": "a"}]}))))
    assert calls_of(parse(calls + "<|im_end|>")) == [("todo", {"todos": [{"id": "a"}]})]


@pytest.mark.parametrize("name", ["kimi-k2-thinking", "kimi-k2.5"])
def test_a_call_inside_open_reasoning_ends_it(name: str) -> None:
    """The whole call in the reasoning, nothing executed: https://github.com/vllm-project/vllm/issues/39056"""
    parsed = parse(
        "Need the clock." + section(("functions.clock:0", '{"tz": "UTC"}')) + "<|im_end|>", name=name, opened="<think>"
    )
    assert (parsed.reasoning_content, parsed.content) == ("Need the clock.", "")
    assert calls_of(parsed) == [("clock", {"tz": "UTC"})]


@pytest.mark.parametrize(
    ("opened", "completion", "reasoning", "content", "complete"),
    [
        ("", "<think>First, the tide tables", "First, the tide tables", "", False),
        ("<think>", "First, the tide tables", "First, the tide tables", "", False),
        ("<think></think>", "High tide is at noon.<|im_end|>", None, "High tide is at noon.", True),
        ("", "High tide is at noon.<|im_end|>", None, "High tide is at noon.", True),
    ],
)
def test_a_truncated_thought_is_reasoning_where_the_prompt_says_so(
    opened: str, completion: str, reasoning: str | None, content: str, complete: bool
) -> None:
    """https://github.com/vllm-project/vllm/pull/35230"""
    parsed = parse(completion, name="kimi-k2.5", opened=opened)
    assert (parsed.reasoning_content, parsed.content) == (reasoning, content)
    assert parsed.reasoning_complete is complete


def test_null_arguments_survive() -> None:
    """https://github.com/PrimeIntellect-ai/prime-rl/pull/2988"""
    assert calls_of(parse(section(("functions.set:0", '{"x": null}')))) == [("set", {"x": None})]


def test_parsers_are_offered_to_other_renderers() -> None:
    """`tool_parser = "kimi-k2"` in the config of a fine-tune with another template."""
    codec, reasoning = create("tool_parser", "kimi-k2"), create("reasoning_parser", "kimi-k2")
    [found] = codec.read(f'{BEGIN}functions.f:0{ARGUMENT}{{"a": 1}}{END}', None)  # type: ignore[attr-defined]
    assert (found.name, found.arguments, found.id) == ("f", {"a": 1}, "functions.f:0")
    assert (reasoning.open, reasoning.close) == ("<think>", "</think>")  # type: ignore[attr-defined]
