"""Give training samples their images: as many as their ids have places for, in the same order."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from prl.client.images import ImagePolicy, has_images, image_urls, inline_images
from prl.client.vision import VisionTokens
from prl.trajectory import InterleaveResult
from prl.types import AlignmentError, Message, PrlError, Rollout, TrainingSample

from .cache import ImageCache, ImageFeatures


class ImageAttacher:
    """Fills `pixel_values` [patches, values], `image_grid_thw` [images, 3] and `mm_token_type_ids` of samples.

    Samples of the same images share their arrays. A sample without images gets none of the three.
    """

    def __init__(self, cache: ImageCache, tokens: VisionTokens, policy: ImagePolicy | None = None) -> None:
        self.cache = cache
        self.tokens = tokens
        self.policy = policy or ImagePolicy()
        self._expected: set[asyncio.Task[None]] = set()
        self._joined: WeakValueDictionary[tuple[str, ...], Any] = WeakValueDictionary()

    def expect(self, messages: Sequence[Message]) -> None:
        """Begin to prepare the images of messages that rollouts will hold, while these are rendered and sampled."""
        if has_images(messages):
            task = asyncio.create_task(self._prefetch(messages))
            self._expected.add(task)
            task.add_done_callback(self._expected.discard)

    async def close(self) -> None:
        """End what is being prepared."""
        for task in self._expected:
            task.cancel()
        await asyncio.gather(*self._expected, return_exceptions=True)
        await self.cache.close()

    async def _prefetch(self, messages: Sequence[Message]) -> None:
        with contextlib.suppress(PrlError):  # the rollout that sends them meets the same fault, and records it
            self.cache.prefetch(image_urls(await inline_images(messages, self.policy)))

    async def __call__(self, rollout: Rollout, result: InterleaveResult) -> InterleaveResult:
        """Return the rollout's samples with their images; raise `AlignmentError` where ids and images do not fit."""
        samples = [
            await self._fill(sample, _images(rollout, turns), rollout.trajectory_id)
            for sample, turns in zip(result.samples, result.turns, strict=True)
        ]
        return replace(result, samples=samples)

    async def _fill(self, sample: TrainingSample, urls: Sequence[str], trajectory: str) -> TrainingSample:
        ids = [*sample.prompt_ids, *sample.completion_ids]
        blocks = self.tokens.image_blocks(ids)
        self._check_places(sample, blocks, len(urls), trajectory)
        if not urls:
            return sample
        features = await asyncio.gather(*(self.cache.get(url) for url in urls))
        for number, ((start, end), one) in enumerate(zip(blocks, features, strict=True)):
            if end - start != self.tokens.placeholders(one.grid):
                raise _mismatch(
                    f"image {number} has {self.tokens.placeholders(one.grid)} features for {end - start} placeholders",
                    trajectory,
                    f"tokens {start} to {end}",
                )
        return replace(
            sample,
            pixel_values=self._pixels(features),
            image_grid_thw=np.array([one.grid for one in features], dtype=np.int64),
            mm_token_type_ids=self.tokens.types(ids),
        )

    def _check_places(
        self, sample: TrainingSample, blocks: Sequence[tuple[int, int]], images: int, trajectory: str
    ) -> None:
        placeholders = {self.tokens.image, self.tokens.video}
        for place, token in enumerate(sample.completion_ids):
            if token in placeholders and sample.completion_mask[place]:
                raise AlignmentError(
                    "the model sampled a placeholder, for which there is no image",
                    where=f"trajectory {trajectory!r}, token {len(sample.prompt_ids) + place}",
                    next_step="nothing is to be done: the rollout is not trained on, and counted as broken",
                )
        if self.tokens.video in sample.prompt_ids or self.tokens.video in sample.completion_ids:
            raise _mismatch("the ids have a place for a video, and messages have images only", trajectory)
        if len(blocks) != images:
            raise _mismatch(f"the ids have places for {len(blocks)} images, the messages have {images}", trajectory)

    def _pixels(self, features: Sequence[ImageFeatures]) -> Any:
        """Return the patches of all images, one after the other; the same array for the same images."""
        if len(features) == 1:
            return features[0].pixel_values
        key = tuple(one.digest for one in features)
        joined = self._joined.get(key)
        if joined is None:
            joined = self._joined[key] = np.concatenate([one.pixel_values for one in features])
        return joined


def _images(rollout: Rollout, turns: Sequence[int]) -> list[str]:
    """Return the images that the sample made of `turns` was prompted with: those before its last turn."""
    if rollout.turn_messages:
        return image_urls(rollout.messages[: rollout.turn_messages[turns[-1]]])
    urls = image_urls(rollout.messages)
    if urls:
        raise AlignmentError(
            "it is not known which turn saw which images",
            where=f"trajectory {rollout.trajectory_id!r}",
            next_step="play images in an environment whose conversation is one line",
        )
    return urls


def _mismatch(what: str, trajectory: str, place: str = "") -> AlignmentError:
    return AlignmentError(
        what,
        where=f"trajectory {trajectory!r}" + (f", {place}" if place else ""),
        next_step="the server must prepare images as the model's own processor does: check its image limits "
        "(min and max pixels), and that its chat template writes every image",
    )
