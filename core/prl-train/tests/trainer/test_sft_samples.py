"""Conversations to samples: each turn is trained once, behind the prompt that a sampler would have had."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import prl
from prl.types import RenderError
from prl_train.data import SampleBuilder, SftSample, read_row
from prl_train.errors import DataError


def answer(text: str, reasoning: str | None = None) -> dict[str, Any]:
    return {"role": "assistant", "content": text} | ({"reasoning_content": reasoning} if reasoning else {})


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


CALL = {
    "role": "assistant",
    "content": "",
    "reasoning_content": "look",
    "tool_calls": [{"type": "function", "function": {"name": "lamp", "arguments": {"level": 2}}}],
}
REASONED = [user("a"), answer("one", "first"), user("b"), answer("two", "second"), user("c"), answer("three", "third")]
WITH_TOOL = [user("a"), CALL, {"role": "tool", "content": "ok"}, answer("done", "so"), user("b"), answer("two")]


@pytest.fixture(scope="module")
def tokenizer(model_dir: Path) -> Any:
    return prl.load_tokenizer(str(model_dir))


def builder(tokenizer: Any, name: str = "qwen3", **settings: Any) -> SampleBuilder:
    return SampleBuilder(prl.create_renderer(tokenizer, name), tokenizer, **settings)


def trained(tokenizer: Any, sample: SftSample) -> list[str]:
    """Return the trained stretches of a sample as text."""
    out, last = [], False
    for token, flag in zip(sample.token_ids, sample.loss_mask, strict=True):
        if flag and last:
            out[-1].append(token)
        elif flag:
            out.append([token])
        last = flag
    return [tokenizer.decode(ids) for ids in out]


def test_a_template_that_strips_earlier_reasoning_gives_one_sample_a_user_turn(tokenizer: Any) -> None:
    samples = builder(tokenizer).build({"messages": REASONED})
    assert [trained(tokenizer, sample) for sample in samples] == [
        ["<think>\nfirst\n</think>\n\none<|im_end|>"],
        ["<think>\nsecond\n</think>\n\ntwo<|im_end|>"],
        ["<think>\nthird\n</think>\n\nthree<|im_end|>"],
    ]


def test_turns_of_one_tool_cycle_share_a_sample(tokenizer: Any) -> None:
    samples = builder(tokenizer).build({"messages": WITH_TOOL})
    call = '<think>\nlook\n</think>\n\n<tool_call>\n{"name": "lamp", "arguments": {"level": 2}}\n</tool_call><|im_end|>'
    assert [trained(tokenizer, sample) for sample in samples] == [
        [call, "<think>\nso\n</think>\n\ndone<|im_end|>"],
        ["<think>\n\n</think>\n\ntwo<|im_end|>"],
    ]


def test_the_full_render_would_train_turns_behind_prompts_that_no_sampler_sees(tokenizer: Any) -> None:
    (whole,) = builder(tokenizer, mode="whole").build({"messages": REASONED})
    assert trained(tokenizer, whole)[0] == "one<|im_end|>", "the first turn has lost its reasoning"


@pytest.mark.parametrize("name", ["qwen3", "qwen3-instruct-2507"])
def test_random_conversations_train_each_turn_once_behind_its_prompt(tokenizer: Any, name: str) -> None:
    draw = random.Random(5)
    made = builder(tokenizer, name)
    for _ in range(60):
        messages = conversation(draw)
        turns = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
        samples = made.build({"messages": messages})
        found = [piece for sample in samples for piece in trained(tokenizer, sample)]
        assert len(found) == len(turns)
        for turn in turns:
            prompt = made.renderer.render_ids(messages[:turn], add_generation_prompt=True)
            assert any(
                sample.token_ids[: len(prompt)] == prompt and sample.loss_mask[len(prompt)] for sample in samples
            ), f"turn {turn} of {messages}"


def conversation(draw: random.Random) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [{"role": "system", "content": "s"}] if draw.random() < 0.5 else []
    for _ in range(draw.randint(1, 4)):
        messages.append(user(draw.choice(["a", "b c", "\n", "guess"])))
        if draw.random() < 0.4:
            messages += [CALL, {"role": "tool", "content": draw.choice(["ok", "3", ""])}]
        messages.append(answer(draw.choice(["x", "my guess is 2", "yes\n"]), draw.choice([None, "hm", "so\nthen"])))
    return messages


def test_a_conversation_that_the_template_never_rewrites_is_one_sample(tokenizer: Any) -> None:
    messages = [user("a"), answer("one"), user("b"), answer("two")]
    (sample,) = builder(tokenizer, "qwen3-instruct-2507").build({"messages": messages})
    assert trained(tokenizer, sample) == ["one<|im_end|>", "two<|im_end|>"]


def test_one_sample_a_turn_and_the_last_turn_alone(tokenizer: Any) -> None:
    each = builder(tokenizer, mode="per_turn").build({"messages": WITH_TOOL})
    assert [len(trained(tokenizer, sample)) for sample in each] == [1, 1, 1]
    (last,) = builder(tokenizer, mode="last").build({"messages": WITH_TOOL})
    assert (last.token_ids, last.loss_mask) == (each[-1].token_ids, each[-1].loss_mask)


def switched(*switches: tuple[str, Any] | None) -> list[dict[str, Any]]:
    pairs = zip(REASONED, switches, strict=True)
    return [message | ({switch[0]: switch[1]} if switch else {}) for message, switch in pairs]


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        (switched(None, ("train", False), None, ("weight", 0), None, None), ["three"]),
        (switched(None, ("weight", 1), None, ("weight", 0), None, ("weight", 0)), ["one"]),
        (switched(("train", True), ("train", False), None, ("train", False), None, ("train", False)), ["a"]),
    ],
)
def test_a_messages_own_switch_wins_over_its_role(tokenizer: Any, messages: Sequence[Any], expected: list[str]) -> None:
    samples = builder(tokenizer).build({"messages": messages})
    found = [piece for sample in samples for piece in trained(tokenizer, sample)]
    assert [piece.removesuffix("<|im_end|>").split("\n")[-1] for piece in found] == expected


def test_tool_and_user_bodies_are_trained_once_where_their_roles_are_asked_for(tokenizer: Any) -> None:
    samples = builder(tokenizer, roles=("assistant", "tool", "user")).build({"messages": WITH_TOOL})
    found = [piece for sample in samples for piece in trained(tokenizer, sample)]
    assert [piece for piece in found if "<" not in piece] == ["a", "ok", "b"]


def test_what_a_prompt_holds_is_not_trained(tokenizer: Any) -> None:
    row = {"prompt": [user("a"), answer("shown")], "completion": [answer("learned")]}
    (sample,) = builder(tokenizer, "qwen3-instruct-2507").build({"messages": None} | row)
    assert trained(tokenizer, sample) == ["learned<|im_end|>"]


def test_a_switch_that_is_no_switch_is_refused() -> None:
    for message in (answer("x") | {"weight": 0.5}, answer("x") | {"train": True, "weight": 0}):
        with pytest.raises(DataError, match="loss switch") as caught:
            read_row({"messages": [user("a"), message]}, "rows.jsonl, row 2")
        assert caught.value.where == "rows.jsonl, row 2, message 1"
    assert read_row({"messages": [answer("x") | {"weight": None}]}).switches == (None,)


def test_a_conversation_without_a_target_is_an_error_and_never_a_mask_of_zeros(tokenizer: Any) -> None:
    for mode in ("auto", "whole", "per_turn", "last"):
        with pytest.raises(RenderError, match="no token of this conversation would be trained"):
            builder(tokenizer, mode=mode).build({"messages": [user("a"), answer("b") | {"train": False}]})


UNPROVEN = "{% for m in messages %}{{ m.role }}{{ m.content | length }}{{ m.content | upper }}{% endfor %}"
PROVEN = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_a_template_whose_mask_cannot_be_proven_is_refused(model_dir: Path) -> None:
    import tokenizers

    from prl.tokenizer import as_tokenizer

    raw = tokenizers.Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    messages = [user("a"), answer("bc")]
    proven = prl.create_renderer(as_tokenizer(raw), "default", chat_template=PROVEN)
    (sample,) = SampleBuilder(proven, as_tokenizer(raw)).build({"messages": messages})
    assert trained(as_tokenizer(raw), sample) == ["bc<|im_end|>"]
    unproven = prl.create_renderer(as_tokenizer(raw), "default", chat_template=UNPROVEN)
    with pytest.raises(RenderError, match="no mask"):
        SampleBuilder(unproven, as_tokenizer(raw)).build({"messages": messages})
