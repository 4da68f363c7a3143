"""The pool of groups: the bound on off-policyness, and what is dropped."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from prl.types import Rollout, Turn
from prl_train.orchestrator.groups import Group
from prl_train.orchestrator.pool import GroupPool
from prl_train.run import RunError


def group(index: int, version: int, *, error: str | None = None, drop: str | None = None) -> Group:
    turn = Turn(
        prompt_ids=[1],
        completion_ids=[2],
        logprobs=[-0.1],
        finish_reason="stop",
        weight_version=version,
        message={"role": "assistant", "content": ""},
    )
    rollout = Rollout(trajectory_id="t", turns=(turn,), reward=0.0, error=error)
    environment = SimpleNamespace(name="scripted")
    return Group(index, environment, [rollout], [], [0.0], [drop])  # type: ignore[arg-type]


class Runs:
    """Group coroutines under the test's control."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.gates: dict[int, asyncio.Future[Group]] = {}
        self.cancelled: list[int] = []

    async def run(self, index: int) -> Group:
        self.begun.append(index)
        self.gates[index] = asyncio.get_running_loop().create_future()
        try:
            return await self.gates[index]
        except asyncio.CancelledError:
            self.cancelled.append(index)
            raise

    async def finish(self, index: int, version: int, **options: Any) -> None:
        await settle()
        self.gates[index].set_result(group(index, version, **options))
        await settle()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def pool(runs: Runs, *, level: int, per_step: int = 2, last: int = 100, **options: Any) -> GroupPool:
    return GroupPool(
        runs.run, groups_per_step=per_step, max_async_level=level, last_step=last, max_failed_groups=3, **options
    )


async def test_a_synchronous_run_samples_a_batch_only_with_its_own_weights() -> None:
    runs = Runs()
    made = pool(runs, level=0)
    collecting = asyncio.create_task(made.collect(0))
    await settle()
    assert runs.begun == []
    made.new_weights(0)
    await settle()
    assert runs.begun == [0, 1]
    await runs.finish(1, 0)
    await runs.finish(0, 0)
    assert [one.index for one in await collecting] == [0, 1]
    assert runs.begun == [0, 1]
    collecting = asyncio.create_task(made.collect(1))
    await settle()
    assert runs.begun == [0, 1]
    made.new_weights(1)
    await settle()
    assert runs.begun == [0, 1, 2, 3]
    collecting.cancel()
    await made.close()


@pytest.mark.parametrize("level", [0, 1, 5])
async def test_nothing_is_sampled_before_the_runs_first_weights_are_in(level: int) -> None:
    # Else the first batch comes from the model the engine was started with: untrained, and labelled as version 0.
    runs = Runs()
    made = pool(runs, level=level)
    collecting = asyncio.create_task(made.collect(0))
    await settle()
    assert runs.begun == []
    made.new_weights(0)
    await settle()
    assert runs.begun[:2] == [0, 1]
    collecting.cancel()
    await made.close()


async def test_level_one_samples_exactly_one_batch_ahead() -> None:
    runs = Runs()
    made = pool(runs, level=1)
    collecting = asyncio.create_task(made.collect(0))
    made.new_weights(0)
    await settle()
    assert runs.begun == [0, 1, 2, 3]
    await runs.finish(2, 0)
    await runs.finish(0, 0)
    assert [one.index for one in await collecting] == [0, 2]
    assert runs.begun == [0, 1, 2, 3]
    assert made.pending == [1, 3]
    await made.close()


async def test_a_group_older_than_its_batch_allows_is_dropped_and_counted() -> None:
    runs = Runs()
    made = pool(runs, level=1, per_step=1)
    made.new_weights(0)
    first = asyncio.create_task(made.collect(0))
    await settle()
    assert runs.begun == [0, 1]
    await runs.finish(1, 0)
    await first
    made.new_weights(1)
    second = asyncio.create_task(made.collect(1))
    await settle()
    await runs.finish(2, 1)
    await second
    made.new_weights(2)
    third = asyncio.create_task(made.collect(2))
    await runs.finish(0, 0)  # sampled by version 0; batch 2 takes version 1 or newer
    await runs.finish(3, 2)
    assert [one.index for one in await third] == [3]
    counts = made.take_counts()
    assert (counts.stale, counts.failed) == (1, 0)
    assert made.take_counts().stale == 0
    await made.close()


async def test_nothing_is_begun_beyond_the_last_batch() -> None:
    runs = Runs()
    made = pool(runs, level=5, last=2)
    made.new_weights(0)
    collecting = asyncio.create_task(made.collect(0))
    await settle()
    assert runs.begun == [0, 1, 2, 3]
    collecting.cancel()
    await made.close()


async def test_groups_begun_before_an_interruption_are_begun_again_first() -> None:
    runs = Runs()
    made = pool(runs, level=0, next_group=9, pending=[4, 7])
    made.new_weights(0)
    collecting = asyncio.create_task(made.collect(0))
    await settle()
    assert runs.begun == [4, 7]
    await runs.finish(4, 0)
    await runs.finish(7, 0)
    await collecting
    assert (made.next_group, made.pending) == (9, [])


async def test_failed_groups_are_replaced_and_too_many_in_a_row_stop_the_run() -> None:
    runs = Runs()
    made = pool(runs, level=0, per_step=1)
    made.new_weights(0)
    collecting = asyncio.create_task(made.collect(0))
    for index in range(2):
        await runs.finish(index, 0, error="OSError: no engine")
    assert not collecting.done()
    await runs.finish(2, 0, error="OSError: no engine")
    with pytest.raises(RunError, match="3 groups in a row failed; the last one with: OSError: no engine"):
        await collecting
    assert made.take_counts().failed == 3
    await made.close()


async def test_a_fault_of_the_orchestrator_itself_is_not_swallowed() -> None:
    async def broken(index: int) -> Group:
        raise ZeroDivisionError

    made = GroupPool(broken, groups_per_step=1, max_async_level=0, last_step=1, max_failed_groups=3)
    made.new_weights(0)
    with pytest.raises(ZeroDivisionError):
        await made.collect(0)


async def test_a_group_in_flight_under_weights_too_old_is_cancelled_and_begun_again() -> None:
    runs = Runs()
    made = pool(runs, level=3, per_step=1, max_off_policy_steps=1)
    made.new_weights(0)
    await settle()
    assert runs.begun == [0, 1, 2, 3]
    made.new_weights(1)  # one version old is allowed
    await settle()
    assert runs.cancelled == []
    made.new_weights(2)
    await settle()
    assert runs.cancelled == [0, 1, 2, 3]
    assert runs.begun == [0, 1, 2, 3, 4, 0, 1, 2, 3, 5]  # 4 was begun by version 1
    assert made.pending == [0, 1, 2, 3, 4, 5]
    collecting = asyncio.create_task(made.collect(2))
    await runs.finish(0, 2)
    assert [one.index for one in await collecting] == [0]
    assert made.take_counts().cancelled == 4
    await made.close()


async def test_a_finished_group_that_waited_too_long_is_begun_again() -> None:
    runs = Runs()
    made = pool(runs, level=5, per_step=1, max_off_policy_steps=1)
    made.new_weights(0)
    await settle()
    await runs.finish(3, 0)  # nobody collects: it waits
    made.new_weights(2)
    await settle()
    counts = made.take_counts()
    assert (counts.expired, counts.cancelled) == (1, 5)
    assert sorted(runs.begun).count(3) == 2
    collecting = asyncio.create_task(made.collect(2))
    await runs.finish(3, 2)
    assert (await collecting)[0].oldest_version == 2
    await made.close()


async def test_without_the_bound_old_groups_are_finished() -> None:
    runs = Runs()
    made = pool(runs, level=3, per_step=1)
    made.new_weights(0)
    await settle()
    made.new_weights(3)
    await settle()
    assert runs.cancelled == []
    await made.close()


async def test_a_fault_is_not_hidden_by_beginning_its_group_again() -> None:
    async def broken(index: int) -> Group:
        raise ZeroDivisionError

    made = GroupPool(
        broken, groups_per_step=1, max_async_level=0, last_step=9, max_failed_groups=3, max_off_policy_steps=0
    )
    made.new_weights(0)
    await settle()
    made.new_weights(1)
    with pytest.raises(ZeroDivisionError):
        await made.collect(1)


async def test_groups_that_filters_drop_whole_are_replaced_and_kept_for_the_log() -> None:
    runs = Runs()
    made = pool(runs, level=0, per_step=1, max_filtered_groups=3)
    made.new_weights(0)
    collecting = asyncio.create_task(made.collect(0))
    await runs.finish(0, 0, drop="difficulty/too_easy")
    await runs.finish(1, 0, drop="difficulty/too_hard")
    await runs.finish(2, 0)
    assert [one.index for one in await collecting] == [2]
    counts = made.take_counts()
    assert (counts.filtered, [one.index for one in counts.dropped]) == (2, [0, 1])
    await made.close()


async def test_filters_that_drop_everything_stop_the_run_and_say_why() -> None:
    runs = Runs()
    made = pool(runs, level=0, per_step=1, max_filtered_groups=2)
    made.new_weights(0)
    collecting = asyncio.create_task(made.collect(0))
    await runs.finish(0, 0, drop="length/too_long")
    assert not collecting.done()
    await runs.finish(1, 0, drop="length/too_long")
    with pytest.raises(RunError, match="the filters dropped 2 groups in a row; the last one for length/too_long"):
        await collecting
    await made.close()


async def test_examples_that_nobody_wants_are_passed_over_and_counted() -> None:
    runs = Runs()
    made = pool(runs, level=0, wants=lambda index: index % 3 == 2)
    made.new_weights(0)
    await settle()
    assert (runs.begun, made.next_group, made.take_counts().skipped) == ([2, 5], 6, 4)
    await made.close()


async def test_a_data_set_that_is_solved_through_and_through_ends_the_run() -> None:
    made = pool(Runs(), level=0, wants=lambda index: False)
    with pytest.raises(RunError, match="every example counts as solved"):
        made.new_weights(0)


async def test_time_without_anything_in_flight_is_counted() -> None:
    runs = Runs()
    made = pool(runs, level=0, per_step=1)
    await asyncio.sleep(0.05)
    made.new_weights(0)
    await settle()
    first = made.take_counts().idle
    await asyncio.sleep(0.05)
    assert made.take_counts().idle < 0.02
    await runs.finish(0, 0)
    await asyncio.sleep(0.05)
    assert first >= 0.05
    assert made.take_counts().idle >= 0.05
    await made.close()
