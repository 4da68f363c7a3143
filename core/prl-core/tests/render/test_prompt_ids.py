"""Prompts of one rollout share their ids; to everyone who reads one, it is a list that nobody changes."""

from __future__ import annotations

import copy
import pickle
import random
import time
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from fixtures.small_format import TOKENIZER, small_renderer

from prl.render import ChatRenderer, proven_bridge
from prl.types import PromptIds, RenderedTokens, goes_on_from, next_prompt

PROMPT: Any = [{"role": "user", "content": "go"}]
RESULT: Any = [{"role": "tool", "content": "\nfound"}]


@pytest.fixture
def renderer() -> ChatRenderer:
    return small_renderer()


def test_it_reads_as_the_list_it_was_though_the_rollout_went_on() -> None:
    """Environments, sinks and engines of other people index, slice, join and compare a turn's prompt."""
    plain = [7, 8, 9, 8]
    prompt = PromptIds(plain)
    prompt.extended([1, 8, 2])
    cuts = [None, -9, -2, -1, 0, 1, 3, 4, 9]
    slices = [slice(start, stop, step) for start in cuts for stop in cuts for step in (None, 1, 2, -1, -3)]
    assert [prompt[cut] for cut in slices] == [plain[cut] for cut in slices]
    assert [prompt[place] for place in range(-4, 4)] == [plain[place] for place in range(-4, 4)]
    for place in (4, -5):
        with pytest.raises(IndexError):
            prompt[place]
    assert (len(prompt), list(prompt), list(reversed(prompt))) == (4, plain, plain[::-1])
    assert ([1 in prompt, 8 in prompt], prompt.count(8), prompt.index(9)) == ([False, True], 2, 2)
    assert prompt + plain == plain + prompt == [*prompt, *plain] == plain + plain
    assert prompt == plain
    assert plain == prompt
    assert prompt != [7, 8, 9]
    assert prompt != PromptIds([7, 8, 9, 1])
    assert prompt != tuple(plain)
    assert repr(prompt) == repr(plain)
    assert not PromptIds()


def test_copies_and_pickles_are_plain_lists() -> None:
    """What crosses a process border must neither bring the rest of the rollout nor need this class."""
    prompt = PromptIds([1, 2])
    prompt.extended([3])
    for made in (pickle.loads(pickle.dumps(prompt)), copy.deepcopy(prompt)):
        assert type(made) is list
        assert made == [1, 2]


@pytest.mark.parametrize("seed", range(5))
def test_no_branch_changes_another(seed: int) -> None:
    """Two next turns of one prompt (an agent that went back, two completions of one request) must not mix."""
    rng = random.Random(seed)
    plain: list[list[int]] = [[]]
    shared = [PromptIds()]
    for _ in range(200):
        base = rng.choice([len(plain) - 1, rng.randrange(len(plain))])
        more = [[rng.randrange(9) for _ in range(rng.randrange(4))] for _ in range(2)]
        plain.append([*plain[base], *more[0], *more[1]])
        shared.append(shared[base].extended(*more))
    assert [list(ids) for ids in shared] == plain


class Slow:
    """Ids that another thread gets in front of."""

    def __init__(self, ids: list[int]) -> None:
        self._ids = ids

    def __iter__(self) -> Iterator[int]:
        time.sleep(0.02)
        return iter(self._ids)


def test_threads_that_extend_one_prompt_get_branches() -> None:
    """Requests of one conversation render in threads; neither may see the ids of the other."""
    prompt = PromptIds(range(50))
    with ThreadPoolExecutor(3) as threads:
        made = list(threads.map(lambda number: prompt.extended(Slow([number] * 3)), range(3)))  # type: ignore[arg-type]
    assert [ids[50:] for ids in made] == [[number] * 3 for number in range(3)]


def test_a_part_that_holds_no_ids_spoils_nothing() -> None:
    broken: Any = None
    prompt = PromptIds([1])
    with pytest.raises(TypeError):
        prompt.extended([2], broken)
    assert prompt == [1]
    assert prompt.extended([3]) == [1, 3]


def test_a_long_rollout_takes_the_memory_of_its_last_prompt() -> None:
    """Thousands of rollouts are under way at once: a list for each turn would take gigabytes."""
    tracemalloc.start()
    try:
        prompts = [PromptIds(range(1000))]
        while len(prompts) < 500:
            prompts.append(prompts[-1].extended(range(20), range(20)))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(prompts[-1]) == 20_960
    assert held < 1_000_000  # as lists: 44 million


@pytest.mark.parametrize("completion", ["one</s>", "cut off", ""])
def test_a_bridge_of_shared_ids_is_that_of_lists(renderer: ChatRenderer, completion: str) -> None:
    """A session must send the same prompt as a caller with lists, whose spans, masks and type are as ever."""
    prompt = renderer.render_ids(PROMPT, add_generation_prompt=True)
    sampled = TOKENIZER.encode(completion)
    whole = renderer.bridge_to_next_turn(prompt, sampled, RESULT)
    shared = renderer.bridge_to_next_turn(PromptIds(prompt), sampled, RESULT)
    assert whole is not None
    assert shared is not None
    assert len(shared) == len(whole.token_ids)
    assert shared.ids == whole.token_ids
    assert type(shared.token_ids) is list
    assert shared == whole
    assert replace(shared, roles=()).token_ids == whole.token_ids
    assert copy.deepcopy(shared) == pickle.loads(pickle.dumps(shared)) == whole
    with pytest.raises(AttributeError):
        shared.nothing  # type: ignore[attr-defined]  # noqa: B018


def test_a_bridge_of_shared_ids_copies_no_prompt(renderer: ChatRenderer) -> None:
    """Else the cost of a turn would grow with the rollout."""
    prompt = PromptIds(renderer.render_ids(PROMPT, add_generation_prompt=True))
    for turns in range(3):
        following = proven_bridge(renderer, prompt, TOKENIZER.encode("one</s>"), RESULT, tools=None, history=PROMPT)
        assert following is not None
        assert following.shares(prompt), f"turn {turns}"
        assert len(following) > len(prompt)
        prompt = following


def test_a_list_that_goes_on_from_a_prompt_is_kept_as_one(renderer: ChatRenderer) -> None:
    """Servers and renderers of other people give lists; a rollout of theirs shares its memory all the same."""
    prompt = PromptIds([1, 2])
    assert next_prompt([1, 2, 3, 4], prompt, [3]).shares(prompt)
    assert next_prompt([1, 2, 3, 4], prompt, [3]) == [1, 2, 3, 4]
    other = next_prompt([1, 9, 3, 4], prompt, [3])
    assert other == [1, 9, 3, 4]
    assert not other.shares(prompt)


@pytest.mark.parametrize("kind", [list, tuple, PromptIds])
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
def test_the_beginning_is_compared(prompt: list[int], completion: list[int], begins: bool, kind: Any) -> None:
    """A renderer that writes earlier ids anew would break the promise that the trainer sees the sampler's ids."""
    assert RenderedTokens([1, 2, 3, 4], None).begins_with(kind(prompt), kind(completion)) is begins
    assert goes_on_from(kind([1, 2, 3, 4]), kind(prompt), kind(completion)) is begins


def test_shared_ids_of_another_completion_are_no_proof() -> None:
    """Two branches share their prompt; the completion of one is not the other's."""
    prompt = PromptIds([1, 2])
    following = prompt.extended([3], [4])
    assert goes_on_from(following, prompt, [3])
    assert not goes_on_from(following, prompt, [5])
    assert not goes_on_from(prompt, following, [])


def test_earlier_ids_need_not_be_lists(renderer: ChatRenderer) -> None:
    """Callers that keep ids in tuples get the same prompt."""
    prompt, sampled = renderer.render_ids(PROMPT, add_generation_prompt=True), TOKENIZER.encode("one</s>")
    expected = renderer.bridge_to_next_turn(prompt, sampled, RESULT)
    assert expected is not None
    assert renderer.bridge_to_next_turn(tuple(prompt), tuple(sampled), RESULT) == expected


def test_there_is_no_bridge_over_a_message_that_nobody_sampled(renderer: ChatRenderer) -> None:
    """An assistant message was not sampled: appending it would train on what no model said."""
    said: Any = [{"role": "assistant", "content": "no"}]
    assert renderer.bridge_to_next_turn([1], [2], said) is None
