"""Parse inverts render; a stream in any chunks ends in the same message; no ids make parsing raise."""

from __future__ import annotations

import functools
import json
from dataclasses import replace
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
from prl.tokenizer import Tokenizer

VOCABULARY = {
    "deepseek-v3": "deepseek-v3",
    "deepseek-r1": "deepseek-r1",
    "deepseek-v3.1": "deepseek-r1",
    "deepseek-v4": "deepseek-v4",
}
# Options under which a finished turn is what the model sampled: history without reasoning is no rollout of these.
ROLLOUT: dict[str, list[dict[str, Any]]] = {
    "deepseek-v3": [{}],
    "deepseek-r1": [{"thinking_retention": "all"}],
    "deepseek-v3.1": [{}, {"thinking": True, "thinking_retention": "all"}],
    "deepseek-v4": [{"thinking_retention": "all"}],
}
PLAIN = replace(ORDINARY, reasoning=0.0)
EDGES = Style(edge=0.6, parts=0, inline_reasoning=0, markup=())
REASONS = {"deepseek-r1", "deepseek-v4"}


@functools.cache
def renderers(name: str) -> tuple[Renderer, ...]:
    return tuple(create_renderer(tokenizer(name), name, **options) for options in ROLLOUT[name])


def tokenizer(name: str) -> Tokenizer:
    return real_tokenizer(VOCABULARY[name])


def _as_this_family_writes_it(name: str, message: Any) -> Any:
    """V3 writes either content or (to be well-formed) two calls; R1 always reasons."""
    calls = message.get("tool_calls") or []
    thought = message.pop("reasoning", None) or message.get("reasoning_content")
    if name == "deepseek-v3":
        if len(calls) == 2:
            message["content"] = ""
        else:
            message.pop("tool_calls", None)
    if name in REASONS:
        message["reasoning_content"] = thought or "Hm."
    else:
        message.pop("reasoning_content", None)
    return message


@pytest.mark.parametrize("style", [ORDINARY, EDGES], ids=["ordinary", "edges"])
@pytest.mark.parametrize("name", VOCABULARY)
def test_parse_gives_back_what_was_rendered(name: str, style: Style) -> None:
    """A turn that comes back changed makes the next prompt differ from what the model saw."""
    read = 0
    for original in assistant_turns(style, 300):
        message = _as_this_family_writes_it(name, original)
        found = sampled(renderers(name), tokenizer(name), message)
        assert found is not None, message
        renderer, prompt, completion = found
        parsed = renderer.parse_response(completion, prompt_ids=prompt)
        text, thought = message["content"] or "", message.get("reasoning_content") or ""
        if name == "deepseek-r1":  # its format strips line feeds around reasoning and after it
            text, thought = text.lstrip("\n"), thought.strip("\n")
        thought = thought if thought.strip() else ""  # reasoning of white space alone is none
        assert (parsed.content, parsed.reasoning_content or "") == (text, thought), message
        assert typed(calls_of(parsed)) == typed(calls_in(message)), message
        assert parsed.invalid_tool_calls == ()
        read += bool(parsed.tool_calls)
    assert read > 20


FRAGMENTS = (
    "<think>",
    "</think>",
    "\n\n",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n",
    "<｜tool▁call▁begin｜>f<｜tool▁sep｜>",
    '{"a": "x<｜tool▁calls▁end｜>"}',
    '{"a": ',
    "\n```",
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
    "<｜DSML｜tool_calls>",
    '<｜DSML｜invoke name="f">\n',
    '<｜DSML｜parameter name="a" string="true">',
    '<｜DSML｜parameter name="b" string="false">',
    "1",
    "</｜DSML｜parameter>\n",
    "</｜DSML｜invoke>\n",
    "</｜DSML｜tool_calls>",
    "<",
    "Hello ",
    "日本🙂",
    "<｜end▁of▁sentence｜>",
    "<｜User｜>",
)
completions = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=6), max_size=12)


def _encode(name: str, *parts: str) -> list[int]:
    return tokenizer(name).encode("".join(parts).encode("utf-8", "ignore").decode("utf-8"))


@pytest.mark.parametrize("name", VOCABULARY)
@pytest.mark.parametrize("opened", ["", "<think>"])
@settings(max_examples=120, deadline=None, derandomize=True, database=None)
@given(parts=completions, cuts=st.lists(st.integers(0, 400), max_size=8))
def test_any_chunking_ends_in_the_same_message(name: str, opened: str, parts: list[str], cuts: list[int]) -> None:
    """A message that depends on network timing: https://github.com/vllm-project/vllm/issues/44326"""
    prompt = _encode(name, "<｜Assistant｜>", opened)
    assert_stream_equals_parse(renderers(name)[0], _encode(name, *parts), cuts, prompt)


@pytest.mark.parametrize("name", VOCABULARY)
def test_one_token_at_a_time_on_real_turns(name: str) -> None:
    """Also splits characters whose bytes lie in several tokens, and markers that are several tokens."""
    for original in assistant_turns(Style(parts=0), 60):
        found = sampled(renderers(name), tokenizer(name), _as_this_family_writes_it(name, original))
        if found is not None:
            renderer, prompt, completion = found
            assert_stream_equals_parse(renderer, completion, range(len(completion)), prompt)


@pytest.mark.parametrize("name", VOCABULARY)
def test_random_ids_never_raise(name: str) -> None:
    """A young policy samples anything, padded embedding rows included; a rollout must survive it."""
    assert_random_ids_survive(renderers(name)[0], tokenizer(name), 300)


MALFORMED = {
    "deepseek-v3": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\n```"
    "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "deepseek-r1": "<｜tool▁calls▁begin｜>function f<｜tool▁calls▁end｜>",
    "deepseek-v3.1": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜><｜tool▁sep｜>{}<｜tool▁call▁end｜>"
    "<｜tool▁calls▁end｜>",
    "deepseek-v4": '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="a" string="false">{'
    "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
}


@pytest.mark.parametrize("name", VOCABULARY)
@pytest.mark.parametrize("cut", [0, 3])
def test_a_malformed_call_is_kept_and_never_executed(name: str, cut: int) -> None:
    """An empty call in place of a malformed one runs a tool that nobody asked for; a lost one is never corrected."""
    prompt = renderers(name)[0].render_ids(PROMPT, add_generation_prompt=True)
    ids = _encode(name, "</think>" if name in REASONS else "", "So: ", MALFORMED[name])
    ids = ids[: len(ids) - cut]
    parsed = renderers(name)[0].parse_response([*ids, *_encode(name, "<｜end▁of▁sentence｜>")], prompt_ids=prompt)
    assert parsed.tool_calls == ()
    assert parsed.content == "So: "
    [call] = parsed.invalid_tool_calls
    assert call.raw == tokenizer(name).decode(ids).partition("So: ")[2]
    assert call.error


TOOLS = replace(ORDINARY, tools=1.0)


@pytest.mark.parametrize(
    ("name", "style", "options"),
    [
        ("deepseek-v3", replace(PLAIN, calls=0.0), {}),
        ("deepseek-v3.1", PLAIN, {}),
        ("deepseek-v3.1", replace(ORDINARY, reasoning=1.0), {"thinking": True, "thinking_retention": "tool_cycle"}),
        ("deepseek-r1", replace(ORDINARY, reasoning=1.0), {"thinking_retention": "tool_cycle"}),
        ("deepseek-v4", PLAIN, {"thinking_mode": "chat"}),
        ("deepseek-v4", TOOLS, {}),
        ("deepseek-v4", TOOLS, {"call_order": "given"}),
        ("deepseek-v4", Style(late_system=0), {"thinking_retention": "tool_cycle"}),
        ("deepseek-v4", Style(late_system=0), {"thinking_retention": "all", "call_order": "given"}),
    ],
)
def test_bridges_equal_full_renders(name: str, style: Style, options: dict[str, Any]) -> None:
    """Prompts that differ between bridged and rendered turns make a policy off by its own rendering."""
    one = create_renderer(tokenizer(name), name, **options)
    bridged, _ = assert_bridges_equal_renders([one], style, 150, seed=5)
    assert bridged > 120


def test_json_in_values_stays_what_it_was() -> None:
    """A string that looks like a number, or like DSML itself, is data."""
    values = {"a": "1", "b": 1, "c": "</｜DSML｜parameter>", "d": [1.0, None, {"e": "ü"}], "f": "", "g": "\n x \n"}
    message: Any = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"function": {"name": "f", "arguments": values}}],
    }
    found = sampled(renderers("deepseek-v4"), tokenizer("deepseek-v4"), message)
    assert found is not None
    renderer, prompt, completion = found
    parsed = renderer.parse_response(completion, prompt_ids=prompt)
    assert [json.dumps(call.arguments) for call in parsed.tool_calls] == [json.dumps(values)]
