"""Who gets which engine, step by step."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from prl.client.pool.lanes import Dispatcher
from prl.client.pool.member import Lane


def lanes(count: int, limit: int | None = 1) -> list[Lane]:
    nothing: Any = None
    return [Lane(nothing, nothing, limit) for _ in range(count)]


def dispatcher(*opened: Lane) -> Dispatcher:
    made = Dispatcher(lambda: RuntimeError("none is open"))
    made.open(opened)
    return made


async def waiting(made: Dispatcher, preferred: Lane | None, patience: float = 5.0) -> asyncio.Task[Lane]:
    task = asyncio.create_task(made.take(preferred, patience))
    await asyncio.sleep(0)
    assert not task.done()
    return task


async def soon(task: asyncio.Task[Lane]) -> Lane:
    return await asyncio.wait_for(task, 30)


async def test_the_least_loaded_lane_is_taken_and_equals_take_turns() -> None:
    one, two = lanes(2, limit=None)
    made = dispatcher(one, two)
    assert [await made.take(None, 1) for _ in range(4)] == [one, two, one, two]
    made.give_back(two)
    assert await made.take(None, 1) is two
    assert await made.take(one, 1) is one, "a rollout's own lane comes before the least loaded one"


async def test_a_freed_lane_goes_to_its_own_rollouts_first() -> None:
    """First come, first served alone would move every rollout at every turn, once all lanes are full."""
    one, two = lanes(2)
    made = dispatcher(one, two)
    for _ in range(2):
        await made.take(None, 1)
    of_two, of_one, of_any = [await waiting(made, preferred) for preferred in (two, one, None)]
    made.give_back(one)
    assert await soon(of_one) is one
    made.give_back(two)
    assert await soon(of_two) is two
    made.give_back(two)
    assert await soon(of_any) is two


async def test_no_lane_idles_while_anyone_waits() -> None:
    one, two = lanes(2)
    made = dispatcher(one, two)
    for _ in range(2):
        await made.take(None, 1)
    of_two = await waiting(made, two)
    made.give_back(one)
    assert await soon(of_two) is one


async def test_who_waits_for_a_lane_that_closed_is_served_in_order() -> None:
    one, two = lanes(2)
    made = dispatcher(one, two)
    for _ in range(2):
        await made.take(None, 1)
    of_two, of_one = [await waiting(made, preferred) for preferred in (two, one)]
    made.close([two])
    made.give_back(one)
    assert await soon(of_two) is one
    made.give_back(two)
    await asyncio.sleep(0)
    assert not of_one.done(), "a closed lane gets no more work"
    made.open([two])
    assert await soon(of_one) is two


async def test_one_that_gives_up_leaves_no_hole() -> None:
    [lane] = lanes(1)
    made = dispatcher(lane)
    await made.take(None, 1)
    first, second, third = [await waiting(made, None) for _ in range(3)]
    first.cancel()
    await asyncio.sleep(0)
    made.give_back(lane)
    assert await soon(second) is lane
    assert made.waiting == 1
    made.give_back(lane)
    third.cancel()  # it was given the lane in the same moment
    with pytest.raises(asyncio.CancelledError):
        await third
    assert lane.active == 0


async def test_patience_counts_from_when_the_last_lane_closed() -> None:
    [lane] = lanes(1)
    made = dispatcher(lane)
    await made.take(None, 1)
    task = await waiting(made, None, patience=0.1)
    await asyncio.sleep(0.25)
    assert not task.done(), "waiting for room on an open lane has no end"
    made.close([lane])
    with pytest.raises(RuntimeError, match="none is open"):
        await asyncio.wait_for(task, 30)
    assert made.waiting == 0
