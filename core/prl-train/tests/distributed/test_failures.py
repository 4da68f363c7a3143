"""One process that fails ends all, its error is told, and nothing is left running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from prl.types import ConfigError
from prl_train.distributed import LocalProcesses, Place, World, find_place
from prl_train.errors import WorkerError

from .spawn import run_world

JOIN = "from prl_train.distributed import joined_world; from prl_train.distributed.local import ParentLine\n"


@pytest.fixture
def started() -> Iterator[list[LocalProcesses]]:
    """Hold the processes that a test starts, and end them with it."""
    made: list[LocalProcesses] = []
    yield made
    for one in made:
        one.end()


def _fail_on_one(world: World, folder: Path) -> None:
    if world.rank == 1:
        raise ConfigError("no luck", where="here", next_step="try again")
    world.wait()


def test_the_others_learn_who_failed_and_why(tmp_path: Path) -> None:
    """A process in a collective would else say that a connection was closed, or wait for ever."""
    told = run_world(2, _fail_on_one, tmp_path)
    assert isinstance(told[0], WorkerError)
    assert told[0].what == "trainer process 1 failed: no luck"
    assert told[0].next_step == "try again"
    assert isinstance(told[1], ConfigError)


def _differ(world: World, folder: Path) -> None:
    world.check_same(world.rank, "the number of rows")


def test_processes_that_differ_stop_all(tmp_path: Path) -> None:
    told = run_world(2, _differ, tmp_path)
    what = "the processes do not agree on the number of rows: [0, 1]"
    assert [getattr(one, "what", one) for one in told] == [what, what]


def test_the_parent_tells_the_first_failure(started: list[LocalProcesses]) -> None:
    code = JOIN + (
        "from prl.types import ConfigError\n"
        "with joined_world() as world:\n"
        "    if world.rank == 1: raise ConfigError('no luck', where='here', next_step='try again')\n"
        "    world.wait()\n"
    )
    started.append(LocalProcesses(2, ["-c", code]))
    with pytest.raises(WorkerError, match="trainer process 1 failed: no luck") as caught:
        started[0].wait(threading.Event())
    assert caught.value.next_step == "try again"
    assert not any(_is_alive(pid) for pid in started[0].pids)


def test_a_killed_process_is_named_though_it_told_nothing(started: list[LocalProcesses]) -> None:
    code = JOIN + (
        "import os\nwith joined_world() as world:\n    if world.rank == 1: os.kill(os.getpid(), 9)\n    world.wait()\n"
    )
    started.append(LocalProcesses(2, ["-c", code]))
    with pytest.raises(WorkerError, match="trainer process 1 was killed by signal 9"):
        started[0].wait(threading.Event())


def test_a_stop_reaches_the_processes(started: list[LocalProcesses]) -> None:
    code = "from prl_train.distributed.local import ParentLine\nassert ParentLine().stop.wait(60)\n"
    started.append(LocalProcesses(2, ["-c", code]))
    stop = threading.Event()
    stop.set()
    started[0].wait(stop)


def test_no_process_outlives_a_killed_parent(tmp_path: Path) -> None:
    """A trainer left behind would go on writing into the folder of a resumed run."""
    code = (
        "import time\nfrom prl_train.distributed import LocalProcesses\n"
        "child = 'from prl_train.distributed.local import ParentLine; ParentLine(); import time; time.sleep(600)'\n"
        "print(*LocalProcesses(2, ['-c', child]).pids, flush=True)\ntime.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pids = [int(word) for word in parent.stdout.readline().split()]
    assert len(pids) == 2
    time.sleep(0.5)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 60
    while left := [pid for pid in pids if _is_alive(pid)]:
        if time.monotonic() > deadline:
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            pytest.fail("a trainer process outlived its parent")
        time.sleep(0.05)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return False
    return state != "Z"


def test_a_place_is_read_from_the_launchers_environment() -> None:
    whole = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    assert find_place(whole) == Place(rank=3, size=4, local_rank=1)
    assert find_place({}) == find_place({"WORLD_SIZE": "1"}) == Place()
    with pytest.raises(ConfigError, match="MASTER_PORT is not set"):
        find_place({name: value for name, value in whole.items() if name != "MASTER_PORT"})
    with pytest.raises(ConfigError, match="RANK is 'x', not a number"):
        find_place({**whole, "RANK": "x"})


def test_one_process_alone_needs_no_group() -> None:
    world = World()
    assert (world.add_up([1.5]), world.largest([2.0])) == ([1.5], [2.0])
    assert (world.from_main("x"), world.collect(3)) == ("x", [3])
    world.check_same(1, "anything")
    with pytest.raises(WorkerError, match="no mesh"):
        _ = world.mesh
