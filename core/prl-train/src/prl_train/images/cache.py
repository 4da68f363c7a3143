"""Prepared images, one entry for each distinct image, made in threads while rollouts go on."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

from prl.client.images import image_bytes


@dataclass(frozen=True, eq=False)
class ImageFeatures:
    """An image as its model takes it: `pixel_values` [patches, values of a patch], `grid` (time, height, width)."""

    digest: str
    pixel_values: Any
    grid: tuple[int, int, int]


class ImageCache:
    """Prepares images with `process(bytes) -> (pixel_values, grid)`, each once.

    `max_bytes` bounds the arrays that the cache itself keeps; the least recently used go first. An image that a sample
    still holds is shared with later samples also after it went.
    """

    def __init__(
        self, process: Callable[[bytes], tuple[Any, tuple[int, int, int]]], *, max_bytes: int, threads: int = 2
    ) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        self.prepared = 0
        self._process = process
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="prl-images")
        self._kept: OrderedDict[str, ImageFeatures] = OrderedDict()
        self._alive: WeakValueDictionary[str, ImageFeatures] = WeakValueDictionary()
        self._coming: dict[str, asyncio.Task[ImageFeatures]] = {}
        self._early: set[asyncio.Task[Any]] = set()

    def prefetch(self, urls: Iterable[str]) -> None:
        """Begin to prepare images; what is wrong with one is told to whoever asks for it later."""
        for url in urls:
            task = asyncio.create_task(self.get(url))
            self._early.add(task)
            task.add_done_callback(self._forget)

    async def get(self, url: str) -> ImageFeatures:
        """Return a prepared image ("data:" URL); raise `RenderError` where it cannot be read."""
        loop = asyncio.get_running_loop()
        data, digest = await loop.run_in_executor(self._pool, _decoded, url)
        found = self._alive.get(digest)
        if found is None:
            task = self._coming.get(digest)
            if task is None:
                task = self._coming[digest] = asyncio.create_task(self._prepare(digest, data))
                task.add_done_callback(lambda done: self._arrived(digest, done))
            found = await asyncio.shield(task)  # others wait for it too
        self._keep(found)
        return found

    async def close(self) -> None:
        """End what is being prepared."""
        tasks = [*self._early, *self._coming.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _prepare(self, digest: str, data: bytes) -> ImageFeatures:
        loop = asyncio.get_running_loop()
        pixel_values, grid = await loop.run_in_executor(self._pool, self._process, data)
        self.prepared += 1
        features = ImageFeatures(digest, pixel_values, grid)
        self._alive[digest] = features
        return features

    def _keep(self, features: ImageFeatures) -> None:
        """Note a use; let the least recently used go where there are too many bytes."""
        if self._kept.pop(features.digest, None) is None:
            self.bytes += features.pixel_values.nbytes
        self._kept[features.digest] = features
        while self.bytes > self.max_bytes:
            _, gone = self._kept.popitem(last=False)
            self.bytes -= gone.pixel_values.nbytes

    def _arrived(self, digest: str, task: asyncio.Task[ImageFeatures]) -> None:
        self._coming.pop(digest, None)
        if not task.cancelled():
            task.exception()  # told to those who wait

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._early.discard(task)
        if not task.cancelled():
            task.exception()


def _decoded(url: str) -> tuple[bytes, str]:
    data = image_bytes(url)
    return data, hashlib.sha256(data).hexdigest()
