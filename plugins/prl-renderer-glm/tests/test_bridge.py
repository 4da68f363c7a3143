"""The next prompt is the previous ids, verbatim, and what the template writes behind them; else there is no bridge."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from fixtures import conversations
from fixtures.plugin import real_tokenizer
from fixtures.turns import assert_bridges_equal_renders, masked_texts

from prl import create_renderer
from prl.contracts import Renderer
from prl.testing.conversations import Style
from prl.types import ConfigError

VOCABULARY = {"glm-4.5": "glm4.5", "glm-4.7": "glm4.5", "glm-5": "glm5", "glm-5.1": "glm5", "glm-5.2": "glm5"}
# Turns in order, each with its results; markup in assistant text would forge reasoning markers.
ORDERLY = Style(markup=(), edge=0.15, disorder=0, late_system=0, inline_reasoning=0)
CAN_CLEAR = [name for name in VOCABULARY if name != "glm-4.5"]
USER: list[Any] = [{"role": "user", "content": "Where?"}]
RESULT: list[Any] = [{"role": "tool", "content": "71%"}]


@functools.cache
def renderer(name: str, **options: Any) -> Renderer:
    return create_renderer(real_tokenizer(VOCABULARY[name]), name, **options)


def variants(name: str, **options: Any) -> tuple[Renderer, ...]:
    return tuple(renderer(name, enable_thinking=on, close_last_turn=True, **options) for on in (True, False))


def ids_of(name: str, text: str) -> list[int]:
    return real_tokenizer(VOCABULARY[name]).encode(text)


def text_of(name: str, ids: list[int]) -> str:
    return real_tokenizer(VOCABULARY[name]).decode(ids)


@pytest.mark.parametrize("name", VOCABULARY)
def test_bridges_equal_full_renders_and_are_refused_where_history_is_rewritten(name: str) -> None:
    """One differing token splits a rollout in two samples; a wrong bridge trains on a prompt nobody would send."""
    bridged, refused = assert_bridges_equal_renders(variants(name), ORDERLY, 150, seed=5)
    assert bridged > 150
    assert refused > 30


@pytest.mark.parametrize("name", VOCABULARY)
def test_with_all_reasoning_kept_every_turn_is_bridged(name: str) -> None:
    """`thinking_retention="all"` promises one sample for each rollout."""
    bridged, refused = assert_bridges_equal_renders(variants(name, thinking_retention="all"), ORDERLY, 100, seed=6)
    assert bridged > 120
    assert refused == 0
    assert renderer(name, thinking_retention="all").is_prefix_stable
    assert not renderer(name).is_prefix_stable


@pytest.mark.parametrize("name", CAN_CLEAR)
def test_with_clear_thinking_off_bridges_follow_the_template(name: str) -> None:
    """The template's own switch keeps reasoning; GLM-5.1 still rewrites turns without any (its look-ahead)."""
    bridged, refused = assert_bridges_equal_renders(variants(name, clear_thinking=False), ORDERLY, 100, seed=7)
    assert bridged > 120
    assert (refused > 0) == (name == "glm-5.1")
    assert renderer(name, clear_thinking=False).is_prefix_stable == (name != "glm-5.1")


@pytest.mark.parametrize(("retention", "clear"), [("all", True), ("tool_cycle", False)])
def test_options_that_contradict_each_other_are_refused(retention: str, clear: bool) -> None:
    """One of the two would be ignored without a word."""
    with pytest.raises(ConfigError, match="contradicts"):
        create_renderer(real_tokenizer("glm5"), "glm-5", thinking_retention=retention, clear_thinking=clear)


PROMPTS = {
    "glm-4.5": "[gMASK]<sop><|user|>\nReady?<|assistant|>",
    "glm-4.7": "[gMASK]<sop><|user|>Ready?<|assistant|><think>",
    "glm-5.2": "[gMASK]<sop><|system|>Reasoning Effort: Max<|user|>Ready?<|assistant|><think>",
}


@pytest.mark.parametrize(
    ("completion", "close"),
    [
        ("Hm.</think>Yes", "<|user|>"),
        ("Hm.</think>Yes<|user|>", ""),
        ("Hm.</think>Yes<|endoftext|>", "<|user|>"),
        ("Hm", "</think><|user|>"),
        ("", "</think><|user|>"),
    ],
)
def test_a_truncated_turn_is_closed_by_the_next_role_marker_once(completion: str, close: str) -> None:
    """Two markers, a marker that is trained although nobody sampled it, or reasoning that never ends.

    https://github.com/PrimeIntellect-ai/verifiers/pull/1068 https://github.com/PrimeIntellect-ai/renderers/pull/98
    """
    prompt, ids = ids_of("glm-4.7", PROMPTS["glm-4.7"]), ids_of("glm-4.7", completion)
    bridge = renderer("glm-4.7", thinking_retention="all").bridge_to_next_turn(prompt, ids, USER)
    assert bridge is not None
    assert bridge.token_ids[: len(prompt) + len(ids)] == [*prompt, *ids]
    assert text_of("glm-4.7", bridge.token_ids[len(prompt) + len(ids) :]) == close + "Where?<|assistant|><think>"
    assert not any(bridge.sampled_mask[len(prompt) + len(ids) :])
    assert bridge.sampled_mask[len(prompt) : len(prompt) + len(ids)] == [True] * len(ids)


def test_results_follow_an_observation_marker_that_was_sampled() -> None:
    """A second marker behind the sampled one: a turn that the model has never seen."""
    prompt = ids_of("glm-4.5", PROMPTS["glm-4.5"])
    call = "\n<think>Ask.</think>\n<tool_call>df\n</tool_call>"
    for stop, opener in (("<|observation|>", ""), ("", "<|observation|>")):
        bridge = renderer("glm-4.5").bridge_to_next_turn(prompt, ids_of("glm-4.5", call + stop), RESULT * 2)
        assert bridge is not None
        assert text_of("glm-4.5", bridge.token_ids[len(prompt) + len(ids_of("glm-4.5", call + stop)) :]) == (
            opener + "\n<tool_response>\n71%\n</tool_response>\n<tool_response>\n71%\n</tool_response><|assistant|>"
        )


@pytest.mark.parametrize(("stop", "new"), [("<|user|>", RESULT), ("<|observation|>", USER)])
def test_a_marker_of_another_role_cannot_be_bridged(stop: str, new: list[Any]) -> None:
    """The template never writes two role markers in a row; a system message cannot follow a sampled user marker."""
    prompt = ids_of("glm-4.5", PROMPTS["glm-4.5"])
    completion = ids_of("glm-4.5", "\n<think></think>\nYes" + stop)
    keeps = renderer("glm-4.5", thinking_retention="all")
    assert keeps.bridge_to_next_turn(prompt, completion, new) is None
    assert keeps.bridge_to_next_turn(prompt, completion, [{"role": "system", "content": "Be brief."}]) is None


@pytest.mark.parametrize(
    ("name", "completion", "is_bridged"),
    [
        ("glm-4.5", "\n<think></think>\nYes.<|user|>", True),
        ("glm-4.5", "\n<think>Hm.</think>\nYes.<|user|>", False),
        ("glm-4.7", "</think>Yes.<|user|>", False),
        ("glm-5.2", "</think>Yes.<|user|>", True),
        ("glm-5.2", "Hm.</think>Yes.<|user|>", False),
    ],
)
def test_a_user_turn_is_bridged_where_nothing_is_dropped(name: str, completion: str, is_bridged: bool) -> None:
    """The placeholder for dropped reasoning stays what it is; GLM-4.7's lacks the opening marker of the prompt."""
    prompt, ids = ids_of(name, PROMPTS[name]), ids_of(name, completion)
    assert (renderer(name).bridge_to_next_turn(prompt, ids, USER) is not None) == is_bridged
    assert renderer(name, thinking_retention="all").bridge_to_next_turn(prompt, ids, USER) is not None


def test_glm47_without_thinking_is_bridged_for_ever() -> None:
    """With thinking off there is nothing to drop: a rollout stays one sample."""
    prompt = ids_of("glm-4.7", "[gMASK]<sop><|user|>Ready?<|assistant|></think>")
    completion = ids_of("glm-4.7", "Yes.<|user|>")
    bridge = renderer("glm-4.7", enable_thinking=False).bridge_to_next_turn(prompt, completion, USER)
    assert bridge is not None
    assert text_of("glm-4.7", bridge.token_ids).endswith("</think>Yes.<|user|>Where?<|assistant|></think>")


@pytest.mark.parametrize("name", VOCABULARY)
def test_an_assistant_message_is_never_bridged(name: str) -> None:
    """It would have to be sampled: https://github.com/PrimeIntellect-ai/renderers/pull/98"""
    prompt = renderer(name).render_ids(USER, add_generation_prompt=True)
    new: list[Any] = [{"role": "assistant", "content": "Here."}, *USER]
    assert renderer(name).bridge_to_next_turn(prompt, ids_of(name, "</think>Yes<|user|>"), new) is None
    assert renderer(name).bridge_to_next_turn(prompt, ids_of(name, "</think>Yes<|user|>"), []) is None


LONG: list[Any] = [
    {"role": "system", "content": "Be brief."},
    *conversations.LONG,
    {"role": "tool", "content": "full"},
    {"role": "tool", "content": "noon"},
    {"role": "assistant", "content": "71%, noon."},
]


def test_masks_of_a_long_conversation_glm45() -> None:
    """What the model samples is trained, role markers on which it stops included; nothing else is.

    https://github.com/PrimeIntellect-ai/prime-rl/issues/2492 https://github.com/OpenPipe/ART/pull/527
    """
    rendered = renderer("glm-4.5", close_last_turn=True).render(LONG)
    tokenizer = real_tokenizer("glm4.5")
    assert masked_texts(tokenizer, rendered, rendered.loss_mask()) == [
        ("[gMASK]<sop><|system|>\nBe brief.<|user|>\nHi<|assistant|>", False),
        ("\n<think></think>\nHello!<|user|>", True),
        ("\nDisk and clock?<|assistant|>", False),
        (
            "\n<think>Ask both.</think>\n<tool_call>df\n<arg_key>path</arg_key>\n<arg_value>/</arg_value>\n"
            "<arg_key>deep</arg_key>\n<arg_value>true</arg_value>\n</tool_call>\n<tool_call>now\n</tool_call>"
            "<|observation|>",
            True,
        ),
        (
            "\n<tool_response>\nfull\n</tool_response>\n<tool_response>\nnoon\n</tool_response><|assistant|>",
            False,
        ),
        ("\n<think></think>\n71%, noon.<|user|>", True),
    ]
    assert [text for text, on in masked_texts(tokenizer, rendered, rendered.content_mask) if on] == [
        "Be brief.",
        "Hi",
        "Hello!",
        "Disk and clock?",
        "Ask both.",
        "full",
        "noon",
        "71%, noon.",
    ]


def test_masks_of_a_long_conversation_glm52() -> None:
    """The generation prompt's `<think>` is never sampled; the placeholder of dropped reasoning is no exception."""
    rendered = renderer("glm-5.2").render(LONG)
    tokenizer = real_tokenizer("glm5")
    assert masked_texts(tokenizer, rendered, rendered.loss_mask()) == [
        ("[gMASK]<sop><|system|>Reasoning Effort: Max<|system|>Be brief.<|user|>Hi<|assistant|><think>", False),
        ("</think>Hello!<|user|>", True),
        ("Disk and clock?<|assistant|><think>", False),
        (
            "Ask both.</think><tool_call>df<arg_key>path</arg_key><arg_value>/</arg_value><arg_key>deep</arg_key>"
            "<arg_value>true</arg_value></tool_call><tool_call>now</tool_call><|observation|>",
            True,
        ),
        ("<tool_response>full</tool_response><tool_response>noon</tool_response><|assistant|><think>", False),
        ("</think>71%, noon.", True),
    ]
    owners = dict(zip(rendered.message_indices, rendered.token_ids, strict=True))
    assert sorted(owners) == [-1, 0, 1, 2, 3, 4, 5, 6, 7]


def test_masks_where_thinking_is_dropped_glm47() -> None:
    """A bare `</think>` comes from the prompt of a turn that does not think: scaffold."""
    rendered = renderer("glm-4.7").render(LONG[1:4])
    assert masked_texts(real_tokenizer("glm4.5"), rendered, rendered.sampled_mask) == [
        ("[gMASK]<sop><|user|>Hi<|assistant|></think>", False),
        ("Hello!<|user|>", True),
        ("Disk and clock?", False),
    ]
