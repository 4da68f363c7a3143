"""A bridge for callers that keep a rollout's ids in one list, and the proof that a bridged prompt begins as it must."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fixtures.small_format import TOKENIZER, small_renderer

from prl.render import ChatRenderer
from prl.types import Kind, RenderedTokens, Span

PROMPT: Any = [{"role": "user", "content": "go"}]
RESULT: Any = [{"role": "tool", "content": "\nfound"}]


@pytest.fixture
def renderer() -> ChatRenderer:
    return small_renderer()


@pytest.mark.parametrize("completion", ["one</s>", "cut off", ""])
def test_a_tail_is_what_the_bridge_puts_behind(renderer: ChatRenderer, completion: str) -> None:
    """A caller with one growing list must send the same prompt as one that bridges whole lists."""
    prompt = renderer.render_ids(PROMPT, add_generation_prompt=True)
    sampled = TOKENIZER.encode(completion)
    whole = renderer.bridge_to_next_turn(prompt, sampled, RESULT)
    tail = renderer.bridge_tail(prompt, sampled, RESULT)
    assert whole is not None
    assert tail is not None
    start = len(prompt) + len(sampled)
    assert [*prompt, *sampled, *tail.token_ids] == whole.token_ids
    shifted = [Span(s.start + start, s.end + start, s.message, s.kind) for s in tail.spans or ()]
    assert shifted == list(whole.spans or ())[-len(shifted) :]
    assert tail.roles == ("tool",)


def test_a_tail_of_a_clean_turn_is_its_framing_and_the_new_messages(renderer: ChatRenderer) -> None:
    """Anything else would be ids that the template does not write."""
    tail = renderer.bridge_tail([1, 2, 3], TOKENIZER.encode("one</s>"), RESULT)
    assert tail is not None
    assert TOKENIZER.decode(tail.token_ids) == "\n<s>tool\n\nfound</s>\n<s>assistant\n"


def test_there_is_no_tail_where_there_is_no_bridge(renderer: ChatRenderer) -> None:
    """An assistant message was not sampled: appending it would train on what no model said."""
    said: Any = [{"role": "assistant", "content": "no"}]
    assert renderer.bridge_tail([1], [2], said) is None
    assert renderer.bridge_to_next_turn([1], [2], said) is None


def test_earlier_ids_need_not_be_lists(renderer: ChatRenderer) -> None:
    """Callers that keep ids in tuples get the same prompt."""
    prompt, sampled = renderer.render_ids(PROMPT, add_generation_prompt=True), TOKENIZER.encode("one</s>")
    whole = renderer.bridge_to_next_turn(tuple(prompt), tuple(sampled), RESULT)
    expected = renderer.bridge_to_next_turn(prompt, sampled, RESULT)
    assert whole is not None
    assert expected is not None
    assert whole == expected
    assert whole.begins_with(prompt, sampled)


@pytest.mark.parametrize(
    ("prompt", "completion", "begins"),
    [
        ([1, 2], [3], True),
        ([1], [2, 3], True),
        ([], [], True),
        ([1, 9], [3], False),
        ([1, 2], [9], False),
        ([1, 2, 3, 4], [5], False),
    ],
)
def test_the_beginning_is_compared(prompt: list[int], completion: list[int], begins: bool) -> None:
    """A renderer that writes earlier ids anew would break the promise that the trainer sees the sampler's ids."""
    assert RenderedTokens([1, 2, 3, 4], None).begins_with(prompt, completion) is begins


def test_a_changed_copy_of_a_bridge_is_compared_again() -> None:
    """What was known of the original must not vouch for other ids."""
    prompt, completion = [1, 2], [3]
    bridged = RenderedTokens.extending(prompt, completion, [4], [Span(0, 4, -1, Kind.SCAFFOLD)], ("tool",))
    assert bridged.token_ids == [1, 2, 3, 4]
    assert bridged.begins_with(prompt, completion)
    assert not replace(bridged, token_ids=[7, 7, 7, 7]).begins_with(prompt, completion)
