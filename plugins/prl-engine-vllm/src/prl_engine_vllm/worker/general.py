"""What runs in every process of vLLM (`vllm.general_plugins`): puts the worker-side methods in place."""

from __future__ import annotations

import importlib

from .load import WorkerMethods


def register() -> None:
    """Add the worker methods that the front end calls by name; once is enough, more do no harm."""
    _start_amx()
    worker = importlib.import_module("vllm.v1.worker.worker_base").WorkerBase
    for name in WorkerMethods.names():
        setattr(worker, name, getattr(WorkerMethods, name))


def _start_amx() -> None:
    """Ask the kernel for AMX tiles where the CPU has them.

    torch asks at its first AMX product. A prompt of a few tokens can reach vLLM's own AMX attention before any product
    did, and the process then dies of an illegal instruction.
    """
    cpu = importlib.import_module("torch").cpu
    if cpu._is_amx_tile_supported():
        cpu._init_amx()
