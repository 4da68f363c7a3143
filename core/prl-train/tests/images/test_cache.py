"""Each distinct image is prepared once, off the event loop, and what is kept has a bound."""

from __future__ import annotations

import asyncio
import base64
import gc
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from prl.types import RenderError
from prl_train.images import ImageCache

PNG = b"\x89PNG\r\n\x1a\n"


def url(name: str, kind: str = "png") -> str:
    return f"data:image/{kind};base64," + base64.b64encode(PNG + name.encode()).decode()


class Processor:
    """Takes 20 ms, or until its gate opens, says in which thread it ran, and gives 8 kB an image."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.seen: list[bytes] = []
        self.threads: set[str] = set()

    def __call__(self, data: bytes) -> tuple[Any, tuple[int, int, int]]:
        self.seen.append(data)
        self.threads.add(threading.current_thread().name)
        time.sleep(0.02)
        assert self.gate.wait(30)
        if data.endswith(b"broken"):
            raise RenderError("an image cannot be read")
        return np.full((4, 512), len(self.seen), dtype=np.float32), (1, 2, 2)


@pytest.fixture
def processor() -> Processor:
    return Processor()


@pytest.fixture
async def cache(processor: Processor) -> AsyncIterator[ImageCache]:
    made = ImageCache(processor, max_bytes=3 * 8192, threads=2)
    yield made
    await made.close()


async def test_an_image_is_prepared_once_however_many_ask_and_however_it_is_named(
    cache: ImageCache, processor: Processor
) -> None:
    same = [cache.get(url("a", kind)) for kind in ("png", "jpeg", "png")]
    first, *others = await asyncio.gather(*same, cache.get(url("a")))
    assert all(one is first for one in others)
    assert await cache.get(url("a")) is first
    assert len(processor.seen) == cache.prepared == 1


async def test_the_event_loop_stays_free_while_images_are_prepared(cache: ImageCache, processor: Processor) -> None:
    processor.gate.clear()
    task = asyncio.gather(*(cache.get(url(str(n))) for n in range(6)))
    for _ in range(10):
        await asyncio.sleep(0.001)
    assert not task.done()
    processor.gate.set()
    await task
    assert threading.main_thread().name not in processor.threads
    assert len(processor.threads) == 2


async def test_images_that_are_announced_are_ready_when_they_are_asked_for(
    cache: ImageCache, processor: Processor
) -> None:
    cache.prefetch([url("a"), url("b"), url("a")])
    while cache.prepared < 2:
        await asyncio.sleep(0.005)
    processor.gate.clear()
    await asyncio.wait_for(cache.get(url("a")), 10)
    assert len(processor.seen) == 2


async def test_what_is_kept_is_bounded_and_the_least_used_goes_first(cache: ImageCache, processor: Processor) -> None:
    for name in ("a", "b", "c", "a", "d"):  # room for three; b was not used for longest
        await cache.get(url(name))
    assert cache.bytes == 3 * 8192
    gc.collect()
    await cache.get(url("a"))
    await cache.get(url("b"))
    assert [data[len(PNG) :] for data in processor.seen] == [b"a", b"b", b"c", b"d", b"b"]


async def test_an_image_that_a_sample_still_holds_is_shared_also_after_it_went(
    cache: ImageCache, processor: Processor
) -> None:
    held = await cache.get(url("a"))
    for name in "bcde":
        await cache.get(url(name))
    assert await cache.get(url("a")) is held
    assert len(processor.seen) == 5


async def test_a_broken_image_is_told_to_everyone_who_asks(cache: ImageCache, processor: Processor) -> None:
    cache.prefetch([url("broken")])
    for _ in range(2):
        with pytest.raises(RenderError, match="cannot be read"):
            await cache.get(url("broken"))
    with pytest.raises(RenderError, match="no data URL"):
        await cache.get("https://host/picture.png")


async def test_someone_who_gives_up_does_not_spoil_it_for_others(cache: ImageCache, processor: Processor) -> None:
    first = asyncio.create_task(cache.get(url("a")))
    second = asyncio.create_task(cache.get(url("a")))
    await asyncio.sleep(0.01)
    first.cancel()
    assert (await second).grid == (1, 2, 2)
    assert len(processor.seen) == 1
