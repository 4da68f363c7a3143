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

NAMES = ("minimax-m2", "minimax-m2.1", "minimax-m2.5", "minimax-m2.7")
# Turns in order, each with its results; markup in assistant text would forge reasoning markers.
ORDERLY = Style(markup=(), edge=0.15, disorder=0, late_system=0, inline_reasoning=0, reasoning=0.9)
USER: list[Any] = [{"role": "user", "content": "Where?"}]
RESULT: list[Any] = [{"role": "tool", "content": "71%"}]


@functools.cache
def renderer(name: str = "minimax-m2", **options: Any) -> Renderer:
    return create_renderer(real_tokenizer("minimax-m2"), name, **options)


def ids_of(text: str) -> list[int]:
    return real_tokenizer("minimax-m2").encode(text)


def text_of(ids: list[int]) -> str:
    return real_tokenizer("minimax-m2").decode(ids)


PROMPT = "]~!b[]~b]system\nBe brief.[e~[\n]~b]user\nReady?[e~[\n]~b]ai\n<think>\n"


@pytest.mark.parametrize("name", NAMES)
def test_bridges_equal_full_renders_and_are_refused_where_history_is_rewritten(name: str) -> None:
    """One differing token splits a rollout in two samples; a wrong bridge trains on a prompt nobody would send."""
    bridged, refused = assert_bridges_equal_renders([renderer(name)], ORDERLY, 120, seed=5)
    assert bridged > 100
    assert refused > 50


def test_with_all_reasoning_kept_every_turn_is_bridged() -> None:
    """`thinking_retention="all"` promises one sample for each rollout."""
    bridged, refused = assert_bridges_equal_renders([renderer(thinking_retention="all")], ORDERLY, 120, seed=6)
    assert bridged > 150
    assert refused == 0
    assert renderer(thinking_retention="all").is_prefix_stable
    assert not renderer().is_prefix_stable


@pytest.mark.parametrize(
    ("completion", "between"),
    [
        ("Hm.\n</think>\n\nYes", "[e~[\n"),
        ("Hm.\n</think>\n\nYes[e~[", "\n"),
        ("Hm", "\n</think>\n\n[e~[\n"),
        ("", "\n</think>\n\n[e~[\n"),
    ],
)
def test_a_truncated_turn_gets_one_close_that_is_not_trained(completion: str, between: str) -> None:
    """Two closes, a trained close, or an index into the prompt for an empty completion.

    https://github.com/PrimeIntellect-ai/verifiers/pull/1068 https://github.com/PrimeIntellect-ai/renderers/pull/98
    """
    prompt, ids = ids_of(PROMPT), ids_of(completion)
    bridge = renderer(thinking_retention="all").bridge_to_next_turn(prompt, ids, USER)
    assert bridge is not None
    assert bridge.token_ids[: len(prompt) + len(ids)] == [*prompt, *ids]
    behind = text_of(bridge.token_ids[len(prompt) + len(ids) :])
    assert behind == between + "]~b]user\nWhere?[e~[\n]~b]ai\n<think>\n"
    assert not any(bridge.sampled_mask[len(prompt) + len(ids) :])
    assert bridge.sampled_mask[len(prompt) : len(prompt) + len(ids)] == [True] * len(ids)


def test_results_share_one_turn_in_a_bridge_too() -> None:
    """Two turns where the template has one: https://github.com/THUDM/slime/issues/2263"""
    call = 'Ask.\n</think>\n\n\n<minimax:tool_call>\n<invoke name="df">\n</invoke>\n</minimax:tool_call>[e~['
    prompt, ids = ids_of(PROMPT), ids_of(call)
    bridge = renderer().bridge_to_next_turn(prompt, ids, RESULT * 2)
    assert bridge is not None
    assert text_of(bridge.token_ids[len(prompt) + len(ids) :]) == (
        "\n]~b]tool\n<response>71%</response>\n<response>71%</response>[e~[\n]~b]ai\n<think>\n"
    )


def test_a_new_question_is_bridged_only_where_reasoning_is_kept() -> None:
    """The template drops the think block of every earlier turn, an empty one too."""
    for completion in ("Hm.\n</think>\n\nYes.[e~[", "\n</think>\n\nYes.[e~["):
        assert renderer().bridge_to_next_turn(ids_of(PROMPT), ids_of(completion), USER) is None
        assert renderer(thinking_retention="all").bridge_to_next_turn(ids_of(PROMPT), ids_of(completion), USER)


@pytest.mark.parametrize("name", NAMES)
def test_an_assistant_message_is_never_bridged(name: str) -> None:
    """It would have to be sampled: https://github.com/PrimeIntellect-ai/renderers/pull/98"""
    new: list[Any] = [{"role": "assistant", "content": "Here."}, *USER]
    keeps = renderer(name, thinking_retention="all")
    assert keeps.bridge_to_next_turn(ids_of(PROMPT), ids_of("\n</think>\n\nYes[e~["), new) is None
    assert keeps.bridge_to_next_turn(ids_of(PROMPT), ids_of("\n</think>\n\nYes[e~["), []) is None


LONG: list[Any] = [
    *conversations.LONG,
    {"role": "tool", "content": "71%"},
    {"role": "tool", "content": "noon"},
    {"role": "assistant", "content": "71%, noon."},
]


def test_masks_of_a_long_conversation() -> None:
    """What the model samples is trained, the stop token included; the prompt's `<think>` and all else are not.

    https://github.com/PrimeIntellect-ai/prime-rl/issues/2492 https://github.com/OpenPipe/ART/pull/527
    """
    rendered = renderer().render(LONG)
    tokenizer = real_tokenizer("minimax-m2")
    assert masked_texts(tokenizer, rendered, rendered.loss_mask()) == [
        (
            "]~!b[]~b]system\nYou are MiniMax-M2, a helpful AI assistant built by MiniMax. Knowledge cutoff: 2025-06."
            "[e~[\n]~b]user\nHi[e~[\n]~b]ai\n",
            False,
        ),
        ("Hello![e~[", True),
        ("\n]~b]user\nDisk and clock?[e~[\n]~b]ai\n<think>\n", False),
        (
            'Ask both.\n</think>\n\n\n<minimax:tool_call>\n<invoke name="df">\n<parameter name="path">/</parameter>\n'
            '<parameter name="deep">true</parameter>\n</invoke>\n<invoke name="now">\n</invoke>\n'
            "</minimax:tool_call>[e~[",
            True,
        ),
        ("\n]~b]tool\n<response>71%</response>\n<response>noon</response>[e~[\n]~b]ai\n", False),
        ("71%, noon.[e~[", True),
        ("\n", False),
    ]
    owned = sorted(set(rendered.message_indices))
    assert owned == [-1, 0, 1, 2, 3, 4, 5, 6]


def test_content_of_a_long_conversation() -> None:
    """Supervision of user or tool text trains on their bodies, not on the scaffold around them."""
    rendered = renderer().render([{"role": "system", "content": "Be brief"}, *LONG[:2]])
    texts = masked_texts(real_tokenizer("minimax-m2"), rendered, rendered.content_mask)
    assert [text for text, on in texts if on] == ["Be brief", "Hi", "Greet.\n", "Hello!"]
