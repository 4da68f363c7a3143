"""Ask a child process which attention kernels run on this machine: torch and the libraries are imported there."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from prl.types import PrlError

from .machine import Machine, obstacle
from .records import AttentionEntry
from .targets import load_target, missing_needs

LIMIT_S = 120.0
_BOOTSTRAP = """
import json, sys
request = json.load(sys.stdin)
sys.path[:] = request["path"]
from prl.plugin.machine_probe import child
child(request)
"""


def probe_kernels(records: Sequence[AttentionEntry], limit_s: float = LIMIT_S) -> list[str]:
    """Return for each kernel why it cannot run here, "" where it can. One that hangs or crashes is told as such."""
    read_end, write_end = os.pipe()
    with os.fdopen(read_end, "rb") as reports:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", _BOOTSTRAP],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(write_end,),
            start_new_session=True,
        )
        os.close(write_end)
        request = {"path": sys.path, "report": write_end, "records": [asdict(record) for record in records]}
        ended = ""
        try:
            process.communicate(json.dumps(request).encode("utf-8"), timeout=limit_s)
        except subprocess.TimeoutExpired:
            ended = f"it did not load within {limit_s:g} s"
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        found = [str(json.loads(line)) for line in reports.read().splitlines()]
    broke_off = ended or f"it ended the process with exit code {process.returncode}"
    unasked = "not asked: a kernel before it broke off"
    missing = len(records) - len(found)
    return found + [broke_off, *[unasked] * (missing - 1)][:missing]


def child(request: dict[str, Any]) -> None:
    """Report one line of JSON a kernel, and leave without waiting for what the libraries started."""
    with os.fdopen(request["report"], "wb", buffering=0) as report:
        machine = _this_machine()
        for fields in request["records"]:
            plain: dict[str, Any] = {
                name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()
            }
            record = AttentionEntry(**plain)
            report.write(json.dumps(_reason(record, machine)).encode("utf-8") + b"\n")
        os._exit(0)


def _reason(record: AttentionEntry, machine: Machine | None) -> str:
    """Say why a kernel cannot run: by its record, else by loading it."""
    missing = missing_needs(record)
    if missing or machine is None:
        return obstacle(record, Machine(), missing=missing or ["torch"])
    reason = obstacle(record, machine)
    if reason:
        return reason
    try:
        load_target(record)()
    except PrlError as error:
        return error.what
    except BaseException as error:  # noqa: BLE001 - the kernel's own code runs here, and its fault is what is asked for
        return f"{type(error).__name__}: {error}"
    return ""


def _this_machine() -> Machine | None:
    """Return the devices that torch finds, None without torch."""
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError:
        return None
    cuda = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
    return Machine(
        devices=("cpu", "cuda") if cuda else ("cpu",),
        capabilities=tuple(tuple(torch.cuda.get_device_capability(index)) for index in cuda),
    )
