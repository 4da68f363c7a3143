"""Run a function in several processes that are one world, and bring back what each returns."""

from __future__ import annotations

import multiprocessing
import os
import socket
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from prl_train.distributed import World, joined_world

Work = Callable[[World, Path], Any]
SECONDS = 240


def run_world(size: int, work: Work, folder: Path) -> list[Any]:
    """Return what `work(world, folder)` returned on each rank; an `Exception` that it raised is returned as well."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    context = multiprocessing.get_context("fork")
    outputs = [folder / f"rank_{rank}.pt" for rank in range(size)]
    arguments = [(rank, size, store.port, work, folder, output) for rank, output in enumerate(outputs)]
    processes = [context.Process(target=_rank, args=one) for one in arguments]
    for process in processes:
        process.start()
    for process in processes:
        process.join(SECONDS)
        if process.is_alive():
            process.kill()
    told = [torch.load(path, weights_only=False) if path.is_file() else None for path in outputs]
    for path in outputs:
        path.unlink(missing_ok=True)
    return told


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
    os._exit(0)  # a forked test process must not run pytest's own exit
