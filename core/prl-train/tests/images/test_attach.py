"""Samples get exactly the images that their ids have places for: one off, and every patch is looked at as another."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prl.client.images import ImagePolicy
from prl.client.vision import VisionTokens
from prl.trajectory import InterleaveResult, interleave_rollout
from prl.types import AlignmentError, Message, Rollout, Turn
from prl_train.data.fit import fit_sample
from prl_train.images import ImageAttacher, ImageCache

IMAGE, VIDEO, START, END = 90, 91, 92, 93
TOKENS = VisionTokens(image=IMAGE, video=VIDEO, merge_size=2)
PNG = b"\x89PNG\r\n\x1a\n"


def url(name: str) -> str:
    return "data:image/png;base64," + base64.b64encode(PNG + name.encode()).decode()


def process(data: bytes) -> tuple[Any, tuple[int, int, int]]:
    """Prepare "2x4" to a grid of 2 by 4 patches, each patch with the name's hash."""
    height, width = (int(size) for size in data[len(PNG) :].decode().split("-")[0].split("x"))
    return np.full((height * width, 3), sum(data), dtype=np.float32), (1, height, width)


@pytest.fixture
async def attach() -> AsyncIterator[ImageAttacher]:
    made = ImageAttacher(ImageCache(process, max_bytes=1 << 20), TOKENS)
    yield made
    await made.close()


def places(*counts: int) -> list[int]:
    return [token for count in counts for token in (START, *[IMAGE] * count, END)]


def user(*names: str) -> Message:
    parts = [{"type": "image_url", "image_url": {"url": url(name)}} for name in names]
    return {"role": "user", "content": [{"type": "text", "text": "Look."}, *parts]}


ANSWER: Message = {"role": "assistant", "content": "yes"}


def turn(prompt: list[int], completion: tuple[int, ...] = (7, 8)) -> Turn:
    return Turn(
        prompt_ids=prompt,
        completion_ids=list(completion),
        logprobs=[-0.5] * len(completion),
        finish_reason="stop",
        weight_version=0,
        message=ANSWER,
    )


def played(turns: list[Turn], messages: list[Message]) -> tuple[Rollout, InterleaveResult]:
    own = tuple(index for index, message in enumerate(messages) if message is ANSWER)
    rollout = Rollout(trajectory_id="t", turns=tuple(turns), reward=1.0, messages=tuple(messages), turn_messages=own)
    return rollout, interleave_rollout(rollout)


async def test_images_follow_the_order_of_their_places_over_several_turns(attach: ImageAttacher) -> None:
    first = turn([1, *places(2), 2])
    second = turn([*first.prompt_ids, *first.completion_ids, 3, *places(4, 1), 4])
    rollout, result = played([first, second], [user("2x4"), ANSWER, user("4x4", "2x2"), ANSWER])
    [sample] = (await attach(rollout, result)).samples
    assert sample.image_grid_thw.tolist() == [[1, 2, 4], [1, 4, 4], [1, 2, 2]]
    patches = [process(PNG + name)[0] for name in (b"2x4", b"4x4", b"2x2")]
    assert (sample.pixel_values == np.concatenate(patches)).all()
    types = [0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 1, 0, 0, 0, 0]
    assert sample.mm_token_type_ids == types
    assert len(types) == len(sample)


async def test_a_new_sample_after_a_break_has_all_images_that_its_prompt_shows(attach: ImageAttacher) -> None:
    first = turn([1, *places(2), 2])
    second = turn([5, *places(2), 5, *places(1), 4])
    rollout, result = played([first, second], [user("2x4"), ANSWER, user("2x2"), ANSWER])
    samples = (await attach(rollout, result)).samples
    assert [one.image_grid_thw.tolist() for one in samples] == [[[1, 2, 4]], [[1, 2, 4], [1, 2, 2]]]


async def test_samples_of_the_same_images_share_their_arrays(attach: ImageAttacher) -> None:
    made = []
    for _ in range(3):
        rollout, result = played([turn([1, *places(2, 1), 2])], [user("2x4", "2x2"), ANSWER])
        made += (await attach(rollout, result)).samples
        rollout, result = played([turn([1, *places(2), 2])], [user("2x4"), ANSWER])
        made += (await attach(rollout, result)).samples
    assert made[0].pixel_values is made[2].pixel_values is made[4].pixel_values
    assert made[1].pixel_values is made[3].pixel_values is made[5].pixel_values
    assert attach.cache.prepared == 2


async def test_a_rollout_of_text_has_none_of_the_fields(attach: ImageAttacher) -> None:
    rollout, result = played([turn([1, 2])], [{"role": "user", "content": "Hi"}, ANSWER])
    [sample] = (await attach(rollout, result)).samples
    assert (sample.pixel_values, sample.image_grid_thw, sample.mm_token_type_ids) == (None, None, None)


@pytest.mark.parametrize(
    ("prompt", "names", "message"),
    [
        ([1, *places(3), 2], ("2x4",), "image 0 has 2 features for 3 placeholders"),
        ([1, *places(2, 1), 2], ("2x4", "4x4"), "image 1 has 4 features for 1 placeholders"),
        ([1, *places(2), 2], ("2x4", "2x2"), "places for 1 images, the messages have 2"),
        ([1, 2], ("2x4",), "places for 0 images, the messages have 1"),
        ([1, *places(2), 2], (), "places for 1 images, the messages have 0"),
    ],
)
async def test_ids_and_images_that_do_not_fit_are_refused(
    attach: ImageAttacher, prompt: list[int], names: tuple[str, ...], message: str
) -> None:
    rollout, result = played([turn(prompt)], [user(*names), ANSWER])
    with pytest.raises(AlignmentError, match=message) as caught:
        await attach(rollout, result)
    assert "'t'" in caught.value.where
    assert caught.value.next_step


@pytest.mark.parametrize("names", [(), ("2x4",)])
@pytest.mark.parametrize("said", [IMAGE, VIDEO])
async def test_a_placeholder_that_the_model_says_is_no_image(
    attach: ImageAttacher, said: int, names: tuple[str, ...]
) -> None:
    """The trainer would stop at the whole batch; the rollout alone is at fault.

    https://github.com/verl-project/verl/issues/5817 https://github.com/modelscope/ms-swift/issues/9287
    """
    shown = places(2) if names else []
    rollout, result = played([turn([1, *shown, 2], (7, said, 8))], [user(*names), ANSWER])
    with pytest.raises(AlignmentError, match="sampled a placeholder"):
        await attach(rollout, result)


async def test_a_place_for_a_video_in_a_prompt_is_refused(attach: ImageAttacher) -> None:
    """A user who writes a placeholder makes the server place one that nothing fills."""
    rollout, result = played([turn([1, VIDEO, 2])], [user(), ANSWER])
    with pytest.raises(AlignmentError, match="a place for a video"):
        await attach(rollout, result)


async def test_images_of_a_conversation_that_is_not_one_line_are_refused(attach: ImageAttacher) -> None:
    rollout, result = played([turn([1, *places(2), 2])], [user("2x4"), ANSWER])
    from dataclasses import replace

    with pytest.raises(AlignmentError, match="which turn saw which images"):
        await attach(replace(rollout, turn_messages=()), result)


async def test_a_sample_too_long_for_a_row_is_never_cut_in_an_image(attach: ImageAttacher) -> None:
    rollout, result = played([turn([1, *places(2), 2])], [user("2x4"), ANSWER])
    [sample] = (await attach(rollout, result)).samples
    assert fit_sample(sample, 8).sample is not None
    for length in range(2, 8):
        assert fit_sample(sample, length).sample is None


async def test_images_of_a_tasks_opening_messages_are_prepared_ahead(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(PNG + b"2x2")
    attach = ImageAttacher(ImageCache(process, max_bytes=1 << 20), TOKENS, ImagePolicy(tmp_path))
    import asyncio

    named: Message = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a.png"}}]}
    refused: Message = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "../b.png"}}]}
    attach.expect([named])
    attach.expect([refused])  # the rollout itself will tell
    async with asyncio.timeout(30):
        while not attach.cache.prepared:
            await asyncio.sleep(0.005)
    await attach.close()
    assert attach.cache.prepared == 1
