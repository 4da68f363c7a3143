"""Supervised samples of real families: each turn is trained as a rollout would have sampled it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from fixtures.plugin import real_tokenizer

from prl import create_renderer
from prl.tokenizer import Tokenizer
from prl_train.data import SampleBuilder, SftSample
from prl_train.data.written import written_turn

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "lamp",
            "description": "Switch it.",
            "parameters": {"type": "object", "properties": {"level": {"type": "integer"}}},
        },
    }
]
MESSAGES: list[Any] = [
    {"role": "user", "content": "Light, please."},
    {
        "role": "assistant",
        "content": None,
        "reasoning_content": "The lamp.",
        "tool_calls": [
            {"id": "functions.lamp:0", "type": "function", "function": {"name": "lamp", "arguments": {"level": 2}}}
        ],
    },
    {"role": "tool", "tool_call_id": "functions.lamp:0", "name": "lamp", "content": "on"},
    {"role": "assistant", "content": "It is on.", "reasoning_content": "Done."},
    {"role": "user", "content": "\nThanks <|im_end|>"},
    {"role": "assistant", "content": "\n\nGladly.", "reasoning_content": "Short."},
]
TURNS = (1, 3, 5)
FAMILIES = {
    "glm-4.5": "glm4.5",
    "glm-4.7": "glm4.5",
    "gpt-oss": "gpt-oss",
    "kimi-k2-thinking": "kimi-k2",
    "minimax-m2": "minimax-m2",
    "nemotron-3-nano": "nemotron-3",
    "qwen3": "qwen3",
    "qwen3.5": "qwen3.5",
}
"""Renderer -> vocabulary, of families whose turns with reasoning go on from their own generation prompt."""


def trained(sample: SftSample) -> list[int]:
    return [token for token, flag in zip(sample.token_ids, sample.loss_mask, strict=True) if flag]


@pytest.fixture(params=FAMILIES, scope="module")
def made(request: pytest.FixtureRequest) -> tuple[Any, Tokenizer]:
    tokenizer = real_tokenizer(FAMILIES[request.param])
    return create_renderer(tokenizer, request.param), tokenizer


def test_a_turn_is_trained_as_it_is_sampled_stop_token_included(made: tuple[Any, Tokenizer]) -> None:
    """A model trained otherwise never learns to stop, or learns a turn behind a prompt that no engine gives it."""
    renderer, tokenizer = made
    samples = SampleBuilder(renderer, tokenizer, mode="per_turn").build({"messages": MESSAGES, "tools": TOOLS})
    assert len(samples) == len(TURNS)
    for turn, sample in zip(TURNS, samples, strict=True):
        prompt = renderer.render_ids(MESSAGES[:turn], tools=TOOLS, add_generation_prompt=True)
        said = sample.token_ids[len(prompt) :]
        assert sample.token_ids[: len(prompt)] == prompt, f"turn {turn} stands behind another prompt"
        assert sample.loss_mask == [False] * len(prompt) + [True] * len(said)
        assert said[-1] in renderer.get_stop_token_ids(), f"turn {turn} ends with {tokenizer.decode(said[-1:])!r}"
        parsed = renderer.parse_response(said, tools=TOOLS, prompt_ids=prompt)
        assert (parsed.content or "").strip() == (MESSAGES[turn]["content"] or "").strip()
        assert [call.name for call in parsed.tool_calls] == ["lamp"] * (turn == 1)


ODD = {
    ("minimax-m2", "minimax-m2"): {"turns_as_template": 3},
    ("deepseek-v3", "deepseek-v3"): {"turns_without_stop": 1},
    ("qwen3", "qwen3"): {},
}


@pytest.mark.parametrize("mode", ["auto", "per_turn"])
@pytest.mark.parametrize(("family", "odd"), ODD.items(), ids=lambda value: value[0] if len(value) == 2 else "")
def test_what_a_template_makes_of_turns_without_reasoning_is_counted(
    family: tuple[str, str], odd: dict[str, int], mode: Any
) -> None:
    """Turns behind a prompt that no engine gives, or that never end, are trained and nobody hears of it."""
    tokenizer = real_tokenizer(family[1])
    messages = [{key: value for key, value in one.items() if key != "reasoning_content"} for one in MESSAGES]
    renderer = create_renderer(tokenizer, family[0])
    samples = SampleBuilder(renderer, tokenizer, mode=mode).build({"messages": messages, "tools": TOOLS})
    assert sum((Counter(sample.notes) for sample in samples), Counter()) == odd


def test_nothing_is_odd_where_each_turn_goes_on_from_its_prompt(made: tuple[Any, Tokenizer]) -> None:
    samples = SampleBuilder(*made).build({"messages": MESSAGES, "tools": TOOLS})
    assert [dict(sample.notes) for sample in samples] == [{}] * len(samples)


def test_few_samples_train_the_same_tokens_as_one_a_turn(made: tuple[Any, Tokenizer]) -> None:
    """A turn that is lost, or trained twice, when turns share a sample."""
    renderer, tokenizer = made
    row = {"messages": MESSAGES, "tools": TOOLS}
    each = SampleBuilder(renderer, tokenizer, mode="per_turn").build(row)
    few = SampleBuilder(renderer, tokenizer).build(row)
    assert len(few) <= len(each)
    assert [t for sample in few for t in trained(sample)] == [t for sample in each for t in trained(sample)]
    for sample in each:
        assert any(other.token_ids[: len(sample.token_ids)] == sample.token_ids for other in few)


def test_a_turn_of_a_teacher_gets_the_tokens_of_a_supervised_one(made: tuple[Any, Tokenizer]) -> None:
    """A final answer makes some templates drop the reasoning of the calls before it; the turn's own tokens stay."""
    renderer, tokenizer = made
    samples = SampleBuilder(renderer, tokenizer, mode="per_turn").build({"messages": MESSAGES, "tools": TOOLS})
    for turn, sample in zip(TURNS, samples, strict=True):
        written = written_turn(renderer, tokenizer, [], MESSAGES[:turn], MESSAGES[turn], tools=TOOLS)
        assert written.prompt + written.completion == sample.token_ids
        assert [False] * len(written.prompt) + written.mask == sample.loss_mask


def test_a_system_message_that_a_template_moves_to_the_front_makes_a_sample_of_its_own() -> None:
    """DeepSeek's template gathers system messages: the first turn never saw the later one."""
    tokenizer = real_tokenizer("deepseek-v3")
    renderer = create_renderer(tokenizer, "deepseek-v3")
    messages: list[Any] = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "one"},
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "b"},
        {"role": "assistant", "content": "two"},
    ]
    first, second = SampleBuilder(renderer, tokenizer).build({"messages": messages})
    assert "Be brief." not in tokenizer.decode(first.token_ids)
    assert [tokenizer.decode(trained(one)) for one in (first, second)] == [
        "one<｜end▁of▁sentence｜>",
        "two<｜end▁of▁sentence｜>",
    ]
