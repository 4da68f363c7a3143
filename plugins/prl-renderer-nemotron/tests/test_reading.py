"""Bug reports about reading completions, turned into small inputs with the right answer, on the real vocabulary."""

from __future__ import annotations

from typing import Any

import pytest
from fixtures.plugin import real_tokenizer, vendor_tokenizer
from fixtures.turns import calls_of, tool

from prl import create_renderer
from prl.plugin import create

LOOSE, TIGHT = "nemotron-3-nano", "nemotron-3-ultra"


def ids_of(text: str) -> list[int]:
    return list(vendor_tokenizer("nemotron-3").encode(text, add_special_tokens=False).ids)


def xml(name: str, **values: str) -> str:
    parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>\n"


def parse(completion: str, *, name: str = LOOSE, opened: str = "<think>\n", tools: Any = None) -> Any:
    renderer = create_renderer(real_tokenizer("nemotron-3"), name)
    prompt_ids = ids_of("<|im_start|>assistant\n" + opened)
    return renderer.parse_response(ids_of(completion), tools=tools, prompt_ids=prompt_ids)


def test_xml_values_follow_the_schema() -> None:
    """`True` for a boolean is valid, `True` for a string is text.

    https://github.com/PrimeIntellect-ai/renderers/issues/47 https://github.com/tetherto/qvac/pull/2372
    """
    values = {"root": "/srv", "levels": "5", "hidden": "True", "follow": "FALSE", "label": "True", "none": "None"}
    kinds = {"levels": "integer", "hidden": "boolean", "follow": "boolean", "none": "null"}
    parsed = parse(
        f"Look first.\n</think>\n{xml('walk', **values)}<|im_end|>",
        tools=[tool("walk", **{key: kinds.get(key, "string") for key in values})],
    )
    assert (parsed.reasoning_content, parsed.content, parsed.invalid_tool_calls) == ("Look first.", "", ())
    [(name, arguments)] = calls_of(parsed)
    assert name == "walk"
    assert arguments == {
        "root": "/srv",
        "levels": 5,
        "hidden": True,
        "follow": False,
        "label": "True",
        "none": None,
    }
    assert type(arguments["hidden"]) is bool


@pytest.mark.parametrize(
    ("name", "completion", "reasoning", "content"),
    [
        (LOOSE, "Well.\n</think>\nYes.<|im_end|>", "Well.", "Yes."),
        (LOOSE, "Well.\n\n</think>\n\nYes. <|im_end|>", "Well.\n", "\nYes."),
        (LOOSE, "\nWell.\n</think>\nYes.<|im_end|>", "\nWell.", "Yes."),
        (LOOSE, "Well.</think>Yes.<|im_end|>", "Well.", "Yes."),
        (TIGHT, "Well.</think>Yes.<|im_end|>", "Well.", "Yes."),
        (TIGHT, "Well.\n</think>\nYes.<|im_end|>", "Well.\n", "\nYes."),
    ],
)
def test_reasoning_comes_back_to_the_letter(name: str, completion: str, reasoning: str, content: str) -> None:
    """What the template adds or trims is removed, once, and nothing else: the next prompt has what was sampled."""
    parsed = parse(completion, name=name)
    assert (parsed.reasoning_content, parsed.content) == (reasoning, content)


def test_two_calls_and_the_content_before_them() -> None:
    """https://github.com/vllm-project/vllm/issues/28806"""
    parsed = parse(f"Plan.\n</think>\nTwo looks.\n{xml('find', p='*.md')}{xml('find', p='*.txt')}<|im_end|>")
    assert parsed.content == "Two looks."
    assert calls_of(parsed) == [("find", {"p": "*.md"}), ("find", {"p": "*.txt"})]


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>\nfind\n</tool_call>",
        "<tool_call>\n<function=>\n</function>\n</tool_call>",
        "<tool_call>\n<function=f>\n<parameter=p>\nx\n</parameter>\n<parameter=p>\ny\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=find>\n<parameter=p>\nx",
    ],
)
def test_a_malformed_call_is_kept_and_never_executed(text: str) -> None:
    """An empty call list, or a call with {}: the environment then answers something the model never wrote."""
    parsed = parse(f"Well.\n</think>\nLook.\n{text}<|im_end|>")
    assert parsed.tool_calls == ()
    assert [invalid.raw for invalid in parsed.invalid_tool_calls] == [text]
    assert parsed.to_message()["content"] == f"Look.{text}"


def test_a_call_inside_open_reasoning_ends_it() -> None:
    """The whole call in the reasoning, nothing executed: https://github.com/vllm-project/vllm/issues/39056"""
    parsed = parse(f"Need the clock.\n{xml('clock', tz='UTC')}<|im_end|>")
    assert (parsed.reasoning_content, parsed.content) == ("Need the clock.", "")
    assert calls_of(parsed) == [("clock", {"tz": "UTC"})]


@pytest.mark.parametrize(
    ("opened", "completion", "reasoning", "content", "complete"),
    [
        ("", "<think>\nFirst, the tide tables", "First, the tide tables", "", False),
        ("<think>\n", "First, the tide tables", "First, the tide tables", "", False),
        ("<think></think>", "High tide is at noon.<|im_end|>", None, "High tide is at noon.", True),
        ("", "High tide is at noon.</s>", None, "High tide is at noon.", True),
    ],
)
def test_a_truncated_thought_is_reasoning_where_the_prompt_says_so(
    opened: str, completion: str, reasoning: str | None, content: str, complete: bool
) -> None:
    """https://github.com/vllm-project/vllm/pull/35230"""
    parsed = parse(completion, opened=opened)
    assert (parsed.reasoning_content, parsed.content) == (reasoning, content)
    assert parsed.reasoning_complete is complete


def test_parsers_are_offered_to_other_renderers() -> None:
    """`tool_parser = "nemotron-xml"` in the config of a fine-tune with another template."""
    codec = create("tool_parser", "nemotron-xml")
    [found] = codec.read("\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n", None)  # type: ignore[attr-defined]
    assert (found.name, found.arguments) == ("f", {"a": 1})
    assert create("reasoning_parser", "nemotron-3").before_close == "\n"  # type: ignore[attr-defined]
    assert create("reasoning_parser", "nemotron-3-ultra").before_close == ""  # type: ignore[attr-defined]
