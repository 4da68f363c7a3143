"""Run a function in several processes that are one world, and bring back what each returns.

A process of its own forks the ranks: forking the test's process would copy locks that its other threads hold.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import socket
import subprocess
import sys
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from prl_train.distributed import World, joined_world

Work = Callable[[World, Path], Any]
SECONDS = 150
TESTS = Path(__file__).resolve().parents[4] / "tests"


def run_world(size: int, work: Work, folder: Path) -> list[Any]:
    """Return what `work(world, folder)` returned on each rank; an `Exception` that it raised is returned as well.

    `work` is a function of a test module's own.
    """
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    words = [str(size), str(store.port), work.__code__.co_filename, work.__name__, str(folder)]
    subprocess.run(
        [sys.executable, __file__, *words],
        env={**os.environ, "PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1"},
        timeout=SECONDS + 60,
        check=True,
    )
    outputs = _outputs(size, folder)
    told = [torch.load(path, weights_only=False) if path.is_file() else None for path in outputs]
    for path in outputs:
        path.unlink(missing_ok=True)
    return told


def _outputs(size: int, folder: Path) -> list[Path]:
    return [folder / f"rank_{rank}.pt" for rank in range(size)]


def main(size: int, port: int, file: Path, name: str, folder: Path) -> None:
    """Import the work, fork the ranks, wait for them."""
    work: Work = getattr(_import(file), name)
    context = multiprocessing.get_context("fork")
    outputs = enumerate(_outputs(size, folder))
    processes = [
        context.Process(target=_rank, args=(rank, size, port, work, folder, output)) for rank, output in outputs
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(SECONDS)
        if process.is_alive():
            process.kill()


def _import(file: Path) -> types.ModuleType:
    """Import a test module with its neighbours as one package."""
    package = types.ModuleType("ranks")
    package.__path__ = [str(file.parent)]
    sys.modules["ranks"] = package
    return importlib.import_module(f"ranks.{file.stem}")


def _rank(rank: int, size: int, port: int, work: Work, folder: Path, output: Path) -> None:
    torch.set_num_threads(1)
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "GLOO_SOCKET_IFNAME": next(name for _, name in socket.if_nameindex() if name.startswith("lo")),
    }
    result: Any
    try:
        with joined_world() as world:
            result = work(world, folder)
    except Exception as error:  # noqa: BLE001  it is what the test looks at
        traceback.print_exc()
        result = error
    partial = output.with_suffix(".part")
    torch.save(result, partial)
    partial.rename(output)
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4], Path(sys.argv[5]))
